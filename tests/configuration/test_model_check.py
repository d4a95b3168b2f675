"""Whether a text names a model is decided as the hub's own library does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.preparation import expand_home
from gtpo_verl.configuration.refusals import check_model, check_models, hub_is_offline

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub's cache with the model `someone/small` in it."""
    folder = tmp_path / "hub/models--someone--small"
    snapshot = folder / f"snapshots/{COMMIT}"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "hub/models--someone--empty").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return snapshot


OFFLINE = [("HF_HUB_OFFLINE", value) for value in ("1", "true", "ON", "Yes")] + [("TRANSFORMERS_OFFLINE", "1")]


@pytest.mark.parametrize(("name", "value"), OFFLINE)
def test_offline_the_cache_decides(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert check_model("someone/small") == cache
    for absent in ("someone/else", "someone/empty", "gpt2"):
        with pytest.raises(FileNotFoundError, match=rf"actor_rollout_ref\.model\.path={absent}: .*HF_HUB_OFFLINE"):
            check_model(absent)


@pytest.mark.parametrize("value", ["", "0", "off", "no"])
@pytest.mark.usefixtures("cache")
def test_online_a_name_is_left_to_the_hub(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    for name in ("someone/else", "gpt2"):
        assert check_model(name) is None


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "../x", "a/b/c", "a b", "x/", "~/nowhere"])
@pytest.mark.usefixtures("cache")
def test_what_is_no_name_is_a_folder(path: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        check_model(path)


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes", "0", "", "off", "maybe"])
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_what_the_library_makes_of_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    program = "from huggingface_hub import is_offline_mode; print(is_offline_mode())"
    said = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == str(hub_is_offline())


def test_the_home_folder_stands_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = OmegaConf.create(
        {
            "gtpo_verl": {"run_dir": "~/runs/a"},
            "trainer": {"default_local_dir": "${gtpo_verl.run_dir}/checkpoints", "resume_from_path": None},
            "data": {"train_files": ["~/a.parquet", "b~.jsonl"], "val_files": "~/c.jsonl"},
            "actor_rollout_ref": {"model": {"path": "~/models/x", "tokenizer_path": "someone/small"}},
        }
    )
    expand_home(config)
    assert OmegaConf.to_container(config, resolve=True) == {
        "gtpo_verl": {"run_dir": "/home/me/runs/a"},
        "trainer": {"default_local_dir": "/home/me/runs/a/checkpoints", "resume_from_path": None},
        "data": {"train_files": ["/home/me/a.parquet", "b~.jsonl"], "val_files": "/home/me/c.jsonl"},
        "actor_rollout_ref": {"model": {"path": "/home/me/models/x", "tokenizer_path": "someone/small"}},
    }


PARTS = {"hf_config_path": "config.json", "lora_adapter_path": "adapter_config.json", "tokenizer_path": "tokenizer"}


@pytest.fixture
def model(tmp_path: Path) -> DictConfig:
    from gtpo_verl.tasks.tiny_model import build_tokenizer

    folder = tmp_path / "model"
    build_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    none = dict.fromkeys(PARTS)
    return OmegaConf.create({"path": str(folder), "lora_rank": 4, "trust_remote_code": False, **none})


@pytest.mark.parametrize("key", PARTS)
def test_every_part_of_a_model_is_looked_for(model: DictConfig, tmp_path: Path, key: str) -> None:
    check_models(model)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for place, said in (("nowhere", "no such folder"), ("file", "a file, no folder"), ("empty", f"no {PARTS[key]}")):
        model[key] = str(tmp_path / place)
        with pytest.raises((FileNotFoundError, ValueError), match=rf"model\.{key}={tmp_path / place}: {said}"):
            check_models(model)


def test_a_model_without_a_tokenizer(model: DictConfig) -> None:
    for file in Path(model.path).glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"model\.path=.*: no tokenizer to be read: "):
        check_models(model)


def test_an_adapter_that_verl_would_leave_out(model: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    model.lora_adapter_path = str(tmp_path)
    check_models(model)
    model.lora_rank = 0
    with pytest.raises(ValueError, match=r"lora_adapter_path=.* with .*lora_rank=0: verl would train the whole model"):
        check_models(model)


@pytest.mark.parametrize("rank", [-3, 1.5, "8"])
def test_a_rank_that_is_none(model: DictConfig, rank: object) -> None:
    """verl trains the whole model where it is below 1."""
    model.lora_rank = rank
    with pytest.raises(ValueError, match=r"lora_rank=.* is no whole number of at least 0"):
        check_models(model)
