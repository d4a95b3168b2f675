"""A checkpoint of another model or adapter is refused before anything starts, in one line that names both."""

import shutil
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gtpo_verl.run_folder.fit import check_fit

pytestmark = pytest.mark.timeout(600)
NONE = {"lora_rank": 0, "target_modules": "all-linear", "target_parameters": None, "exclude_modules": None}
ADAPTER = {**NONE, "lora_rank": 4}


def config(path: Path, **model) -> DictConfig:
    keys = {
        "path": str(path),
        "lora_adapter_path": None,
        "hf_config_path": None,
        "override_config": {},
        **NONE,
        **model,
    }
    return OmegaConf.create({"actor_rollout_ref": {"model": keys}})


def other_model(saved: Path, folder: Path, **sizes) -> Path:
    described = AutoConfig.from_pretrained(saved / "untied")
    layers = sizes.get("num_hidden_layers", described.num_hidden_layers)
    described.update({**sizes, "layer_types": described.layer_types[:1] * layers})
    AutoModelForCausalLM.from_config(described).save_pretrained(folder)
    AutoTokenizer.from_pretrained(saved / "untied").save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("case", "model", "keys"),
    [
        ("untied-fsdp2", "untied", {}),
        ("untied-fsdp", "untied", {}),
        ("tied-fsdp2", "tied", {}),
        ("adapter-fsdp2", "untied", ADAPTER),
        ("adapter-fsdp", "untied", ADAPTER),
        ("adapter-alone", "untied", ADAPTER),
        ("adapter-of-some", "untied", {**ADAPTER, "lora_rank": 2, "target_modules": ["q_proj", "down_proj"]}),
    ],
)
def test_fits(saved: Path, case: str, model: str, keys: dict) -> None:
    check_fit(config(saved / model, **keys), saved / case / "global_step_1")


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"hidden_size": 64}, "hidden_size 32 there and 64 here"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 2 there and 3 here"),
        ({"num_hidden_layers": 1}, "num_hidden_layers 2 there and 1 here"),
        ({"intermediate_size": 96}, "intermediate_size 48 there and 96 here"),
        ({"vocab_size": 128}, "vocab_size .* there and 128 here"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 2 there and 4 here"),
    ],
)
def test_another_model_is_named(saved: Path, tmp_path: Path, sizes: dict, named: str) -> None:
    other = other_model(saved, tmp_path / "other", **sizes)
    checkpoint = saved / "untied-fsdp2/global_step_1"
    with pytest.raises(ValueError, match=rf"{checkpoint} does not fit .*path={other}: {named}; the weight ") as error:
        check_fit(config(other), checkpoint)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("case", "keys", "named"),
    [
        ("untied-fsdp2", ADAPTER, "lora_rank 0 there and 4 here"),
        ("adapter-fsdp2", {}, "lora_rank 4 there and 0 here"),
        ("adapter-fsdp2", {**ADAPTER, "lora_rank": 8}, "lora_rank 4 there and 8 here"),
        ("adapter-alone", {**ADAPTER, "lora_rank": 8}, "lora_rank 4 there and 8 here"),
        ("adapter-fsdp2", {**ADAPTER, "target_modules": ["q_proj"]}, r"the weight .*_proj.* there and .* here"),
    ],
)
def test_another_adapter_is_named(saved: Path, case: str, keys: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_fit(config(saved / "untied", **keys), saved / case / "global_step_1")


def test_overrides_count(saved: Path) -> None:
    with pytest.raises(ValueError, match="num_hidden_layers 2 there and 1 here"):
        check_fit(
            config(saved / "untied", override_config={"num_hidden_layers": 1}), saved / "untied-fsdp2/global_step_1"
        )


def test_what_cannot_be_described_is_left_to_the_ranks(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved / "untied", tmp_path / "unknown")
    (tmp_path / "unknown/config.json").write_text('{"model_type": "nobody_knows"}')
    check_fit(config(tmp_path / "unknown"), saved / "untied-fsdp2/global_step_1")
