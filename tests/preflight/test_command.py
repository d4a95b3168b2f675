"""The whole preflight on this machine alone, and as a dry run."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from actors import write_actor
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.preflight.command import check, preflight, refuse_sizes, refuse_unfit
from gtpo_verl.preflight.findings import Finding, Status, refused
from gtpo_verl.preflight.inputs import check_model
from gtpo_verl.preflight.sizes import (
    COUNTS,
    GPU_SHARE,
    MIXED_DTYPES,
    MIXED_PRECISION,
    MODEL_DTYPE,
    OPTIONAL_COUNTS,
    ROLLOUT_DTYPE,
    WHOLE_NUMBERS,
)

MODEL, TRAIN, VALIDATION = "actor_rollout_ref.model.path", "data.train_files", "data.val_files"


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """A table wide enough to look for whole cells; and what a job sets for itself is its own."""
    before = dict(os.environ)
    os.environ["COLUMNS"] = "240"
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def config(configured, model_folder: Path, data_file: Path, tmp_path: Path) -> DictConfig:
    """A job on this machine's CPU that fits."""
    return configured(
        f"{MODEL}={model_folder}",
        f"{TRAIN}={data_file}",
        f"{VALIDATION}=[{data_file}]",
        f"trainer.default_local_dir={tmp_path / 'run/checkpoints'}",
        "data.max_prompt_length=64",
        "data.max_response_length=64",
        scale="cpu",
        model="tiny",
    )


def with_status(findings: list[Finding], status: Status) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings if finding.status is status}


def test_a_job_that_fits(config: DictConfig, tmp_path: Path) -> None:
    findings = check(config)
    assert refused(findings) == []
    good = with_status(findings, Status.OK)
    seen = {"configuration", "verl's validation", "model", "tokenizer", TRAIN, f"{VALIDATION}: prompts", "context"}
    seen |= {"Ray GPUs", "versions", "plugin", "model files", "data files", "run folder", "node memory"}
    assert seen | {"checkpoint space"} <= good.keys()
    assert good["plugin"].where == "this machine"
    assert list(tmp_path.iterdir()) == []


def test_every_fault_is_found_in_one_go(
    config: DictConfig, configured, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_folder, broken)
    (broken / "model.safetensors").unlink()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    config.actor_rollout_ref.model.path = str(broken)
    config.data.val_files = str(tmp_path / "gone.parquet")
    config.data.max_prompt_length = 10
    config.data.filter_overlong_prompts = False
    config.trainer.nnodes = 2
    config.algorithm.adv_estimator = "gtpo_v1"
    config.algorithm.use_kl_in_reward = True
    red = with_status(check(config), Status.FAIL)
    assert {what: bool(finding.key) for what, finding in red.items() if what != "configuration"} == {
        VALIDATION: True,
        f"{TRAIN}: prompts": True,
        "Ray GPUs": True,
        "model files": True,
        "data files": True,
        "interfaces": True,
    }
    assert "algorithm.use_kl_in_reward" in red["configuration"].detail
    assert str(broken) in red["model files"].detail
    assert "gone.parquet" in red["data files"].detail
    assert "nosuch0" in red["interfaces"].detail


def test_a_job_is_refused_with_every_red_line(config: DictConfig, capfd: pytest.CaptureFixture[str]) -> None:
    config.data.max_response_length = 5000
    config.trainer.nnodes = 2
    with pytest.raises(RuntimeError) as refusal:
        refuse_unfit(config)
    message = str(refusal.value)
    assert "gtpo_verl.preflight=false skips it" in message
    assert "trainer.nnodes" in message
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in message
    assert "actor_rollout_ref.rollout.max_model_len" in message
    assert "fail" in capfd.readouterr().out  # the table


def test_a_job_server_is_no_cluster_address(config: DictConfig) -> None:
    config.ray_kwargs.ray_init.address = "http://head:8265"
    (red,) = refused(check(config))
    assert red.what == "Ray"
    assert "ray job submit --address http://head:8265" in red.detail


def test_a_cluster_that_is_gone_is_named_at_once(config: DictConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    config.ray_kwargs.ray_init.address = address
    (red,) = refused(check(config))
    assert red.key == "RAY_ADDRESS, ray_kwargs.ray_init.address"
    assert f"no Ray cluster at {address}" in red.detail


def test_a_folder_that_cannot_be_written(config: DictConfig) -> None:
    config.trainer.default_local_dir = "/proc/runs/checkpoints"
    red = with_status(check(config), Status.FAIL)
    assert red["run folder"].where == "this machine"
    assert red["run folder"].key == "gtpo_verl.run_dir"
    assert "/proc is not writable" in red["run folder"].detail


def test_a_model_without_a_formula_is_grey(config: DictConfig, model_folder: Path, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    shutil.copytree(model_folder, tmp_path / "gpt2")
    sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    config.actor_rollout_ref.model.path = str(tmp_path / "gpt2")
    findings = check(config)
    assert refused(findings) == []
    assert {"model", "memory and disk"} <= with_status(findings, Status.UNKNOWN).keys()


DRY = ["model=dapo_math", "scale=32b_16x8"]


def test_the_sizes_are_those_of_a_configuration_elsewhere(
    config: DictConfig, model_folder: Path, tmp_path: Path
) -> None:
    """`model.hf_config_path`: verl builds the model from it."""
    other = json.loads((model_folder / "config.json").read_text()) | {"intermediate_size": 96}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(other))
    plain, _ = check_model(config, dry_run=True)
    config.actor_rollout_ref.model.hf_config_path = str(tmp_path / "other")
    shape, _ = check_model(config, dry_run=True)
    assert plain is not None
    assert shape is not None
    assert (plain.intermediate, shape.intermediate) == (64, 96)


OVERRIDES = "actor_rollout_ref.model.override_config"


def test_the_sizes_are_those_that_override_config_gives(config: DictConfig) -> None:
    """verl builds the actor by it, and measures the context by it; `model_config` is its form for Megatron."""
    config.data.max_response_length, config.actor_rollout_ref.rollout.max_model_len = 400, 512
    config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 1024
    (red,) = refused(check(config, dry_run=True))
    assert (red.what, red.key) == ("context", "actor_rollout_ref.rollout.max_model_len")
    for form in ({"max_position_embeddings": 1024}, {"model_config": {"max_position_embeddings": 1024}}):
        OmegaConf.update(config, OVERRIDES, {"attn_implementation": "flash_attention_2", **form}, merge=False)
        config.trainer.device = "cuda"
        shape, _ = check_model(config, dry_run=True)
        assert shape is not None
        assert shape.max_position_embeddings == 1024
        assert refused(check(config, dry_run=True, gpu_memory=80 * 10**9)) == []


@pytest.mark.parametrize("remedy", ["none", "hf_overrides", "variable"])
def test_vllm_does_not_read_override_config(config: DictConfig, remedy: str) -> None:
    config.actor_rollout_ref.rollout.max_model_len = 512
    OmegaConf.update(config, OVERRIDES, {"max_position_embeddings": 1024}, force_add=True)
    if remedy == "hf_overrides":
        key = "actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides"
        OmegaConf.update(config, key, {"max_position_embeddings": 1024}, force_add=True)
    if remedy == "variable":
        os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    yellow = [finding.what for finding in check_model(config, dry_run=True)[1] if finding.status is Status.WARN]
    assert yellow == (["context"] if remedy == "none" else [])


def test_an_override_of_nothing_is_red(config: DictConfig) -> None:
    OmegaConf.update(config, OVERRIDES, {"no_such_part": {"a": 1}}, force_add=True)
    assert OVERRIDES in {finding.key for finding in refused(check(config, dry_run=True))}


def test_a_dry_run_shows_what_it_cannot_know_in_grey(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(DRY, dry_run=True) == 0
    table = capsys.readouterr().out
    for unknown in ("model", "data.train_files", "Ray nodes", "versions", "network", "GPU memory, update", "KV cache"):
        (line,) = [line for line in table.splitlines() if f"│ {unknown} " in line]
        assert "│ unknown │" in line
    assert "32,763,876,352 parameters" in table
    assert "activations 20.6" in table
    assert "0 fail" in table


def test_a_dry_run_judges_by_the_memory_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight(DRY, dry_run=True, gpu_memory=80 * 10**9) == 0
    assert preflight(DRY, dry_run=True, gpu_memory=35 * 10**9) == 1
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in capsys.readouterr().out


def test_a_dry_run_says_what_is_wrong_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight([*DRY, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1000"], dry_run=True) == 1
    assert preflight(["no_such_key=1"], dry_run=True) == 1
    assert "no_such_key" in capsys.readouterr().out
    assert preflight([*DRY, "gtpo_verl.architecture.model_type=nope"], dry_run=True) == 1
    assert "gtpo_verl.architecture" in capsys.readouterr().out


def test_a_model_that_is_elsewhere_is_described_by_its_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight([*DRY, f"{MODEL}=/shared/models/Qwen2.5-32B"], dry_run=True) == 0
    table = capsys.readouterr().out
    assert "/shared/models/Qwen2.5-32B: no such folder on this machine" in table
    assert "32,763,876,352 parameters" in table


def test_a_run_that_goes_on_needs_no_space_for_what_lies_there(config: DictConfig, tmp_path: Path) -> None:
    folder = tmp_path / "run/checkpoints"
    for step in (8, 16, 24):  # the last one of a run that went further
        write_actor(folder / f"global_step_{step}/actor")
        torch.save({}, folder / f"global_step_{step}/data.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("16")
    config.trainer.total_training_steps = 100
    new = {"auto": "1 checkpoint(s)", "disable": "3 checkpoint(s)"}
    for mode, count in new.items():
        config.trainer.resume_mode = mode
        (space,) = [finding for finding in check(config) if finding.what == "checkpoint space"]
        assert f"for {count} of" in space.detail
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = f"{folder}/global_step_8/"
    (space,) = [finding for finding in check(config) if finding.what == "checkpoint space"]
    assert "for 2 checkpoint(s) of" in space.detail


NO_NUMBERS = [
    *((key, value) for key in COUNTS for value in (None, "two", "2", 0, 1.5)),
    *((key, value) for key in OPTIONAL_COUNTS for value in ("two", 0, -1, 1.5, True)),
    *((key, value) for key in WHOLE_NUMBERS for value in (None, "two", 1.5)),
    *((GPU_SHARE, value) for value in (None, "half", "1.1", True, 0, 1.1, float("nan"))),
    # Spellings of the other library among them.
    *((MODEL_DTYPE, value) for value in ("fp12", 64, "half", "auto")),
    *((ROLLOUT_DTYPE, value) for value in ("fp12", 64, "bf16", "fp32", 16)),
    *((key, value) for key in MIXED_DTYPES for value in (None, "fp12", "half", "auto")),
    *((MIXED_PRECISION, value) for value in (True, "bf16")),
]


@pytest.mark.parametrize(("key", "value"), NO_NUMBERS)
def test_a_size_that_is_no_number_is_red_by_its_key(config: DictConfig, key: str, value: object) -> None:
    OmegaConf.update(config, key, value, force_add=True)
    assert key in {finding.key for finding in refused(check(config, dry_run=True))}


@pytest.mark.parametrize("overrides", [["actor_rollout_ref.rollout.n=0"], ["data.train_batch_size=1e1"]])
def test_a_start_without_preflight_looks_at_sizes(overrides: list[str]) -> None:
    """`scale=cpu` asks no nodes; a size that is no number would end as a traceback, or as nothing trained."""
    given = compose_config(["scale=cpu", "model=tiny", *overrides])
    assert not given.gtpo_verl.preflight
    with pytest.raises(ValueError, match=rf"^{overrides[0].split('=')[0]}: size: .* is no whole number of at least 1"):
        refuse_sizes(given)
    fitting = compose_config(["scale=cpu", "model=tiny"])
    refuse_sizes(fitting)
    fitting.actor_rollout_ref.rollout.max_model_len = 8
    with pytest.raises(ValueError, match=r"max_model_len: context: prompt and response take 160 of 8 tokens"):
        refuse_sizes(fitting)


def test_a_number_that_is_a_text_is_shown_as_one(config: DictConfig) -> None:
    config.trainer.nnodes = "2"  # as `trainer.nnodes=${oc.env:NODES}` gives it
    (red,) = [finding for finding in refused(check(config, dry_run=True)) if finding.key == "trainer.nnodes"]
    assert red.detail.startswith("'2' is no whole number")


GOOD = [
    (GPU_SHARE, "0.5"),
    *((MODEL_DTYPE, value) for value in ("bf16", "16", 32)),
    *((ROLLOUT_DTYPE, value) for value in ("auto", "float", "half")),
    *((key, value) for key in MIXED_DTYPES for value in ("bf16", 16)),
    ("actor_rollout_ref.actor.checkpoint.save_contents", None),
    ("actor_rollout_ref.actor.checkpoint.save_contents", "model"),
]


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_a_value_that_verl_and_vllm_take_is_not_red(config: DictConfig, key: str, value: object) -> None:
    config.trainer.device = "cuda"  # whose memory is estimated, by all of them
    OmegaConf.update(config, key, value, force_add=True)
    assert refused(check(config, dry_run=True, gpu_memory=80 * 10**9)) == []


OPTIONAL = [*OPTIONAL_COUNTS, MODEL_DTYPE, ROLLOUT_DTYPE, MIXED_PRECISION]


@pytest.mark.parametrize("key", OPTIONAL)
def test_a_size_that_may_be_left_to_a_library(config: DictConfig, key: str) -> None:
    config.trainer.device = "cuda"
    OmegaConf.update(config, key, None, force_add=True)
    assert refused(check(config, dry_run=True, gpu_memory=80 * 10**9)) == []


@pytest.mark.parametrize("key", ["run_dir", "env", "poll_interval", "cache_dir", "preflight"])
def test_a_setting_without_a_value_is_red(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight([*DRY, f"gtpo_verl.{key}=null"], dry_run=True) == 1
    assert f"gtpo_verl.{key}=null" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "[]"),
        ("config.json", '{"model_type": "qwen2", "hidden_size": "x"}'),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", None),
        ("tokenizer_config.json", "[]"),
        ("chat_template.jinja", "{% if %}"),
        ("chat_template.jinja", "{{ raise_exception('no') }}"),
    ],
)
def test_a_damaged_model_is_red(
    config: DictConfig, model_folder: Path, tmp_path: Path, name: str, text: str | None
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(model_folder, broken)
    if text is None:
        (broken / name).unlink()
    else:
        (broken / name).write_text(text)
    config.actor_rollout_ref.model.path = str(broken)
    assert any("actor_rollout_ref.model." in finding.key for finding in refused(check(config, dry_run=True)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("trainer.logger", ["clearml"]), ("trainer.logger", None), ("trainer.resume_mode", "resume_path")],
)
def test_what_a_job_refuses_at_its_start_is_red_before(config: DictConfig, key: str, value: object) -> None:
    OmegaConf.update(config, key, value)
    (red,) = refused(check(config))
    assert red.key == key
