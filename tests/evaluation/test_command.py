"""What cannot work is refused before an engine starts, and nothing is written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gtpo_verl.evaluation import models
from gtpo_verl.evaluation.command import Request, main, samples
from gtpo_verl.evaluation.store import Store
from gtpo_verl.tasks import tiny_model

PROBLEMS = [{"problem": "1+1?", "answer": "2"}, {"problem": "2+2?", "answer": "4"}]
LENGTH = 1024


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save(folder, 0)
    return folder


def save(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    tokenizer = tiny_model.build_tokenizer()
    config = tiny_model.ModelConfig(hidden_size=128, num_hidden_layers=1, max_position_embeddings=LENGTH)
    tiny_model.save(tiny_model.build_model(config, tokenizer), tokenizer, folder)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return path


def refused(
    capsys: pytest.CaptureFixture[str], folder: Path, names: Sequence[Path | str], data: Path, **given: Any
) -> str:
    """The one line that the command ends with; no engine wrote a log, and nothing else was written."""
    out = folder / "out"
    assert main(Request([str(name) for name in names], [str(data)], out=out, **given)) == 1
    assert not out.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 4, "ks": [2, 8]}, "--k 8: needs as many samples, and --n is 4"),
        ({"n": 0}, "--n 0"),
        ({"n": 4, "ks": [0]}, "--k 0"),
        ({"n": 2, "sampling": {"temperature": 0.0}}, "--temperature 0 gives the same response"),
        ({"sampling": {"top_p": 2.0}}, "--top-p 2: out of range"),
        ({"sampling": {"max_tokens": LENGTH}}, f"--max-tokens {LENGTH}: tiny has 1,024 tokens of context"),
        ({"gpus": 99}, "--gpus 99:"),
        ({"gpu_memory": 1.5}, "--gpu-memory 1.5"),
        ({"template": "What is it?"}, "no {problem} in it"),
        ({"template": "{problem}" * 400}, "row 0, takes"),
        ({"chat_template": Path("none.jinja")}, "--chat-template none.jinja: no such file"),
        ({"sampling": {"dtype": "float3"}}, "--dtype float3: none of auto"),
        ({"reward": "none.py:grade"}, "none.py:grade cannot be loaded"),
    ],
)
def test_options_that_cannot_work(
    given: dict[str, Any], said: str, model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, tmp_path, [model], data, **given)


def test_models_that_are_not_there(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text((model / "config.json").read_text())
    for name, said in {
        "runs/none": "runs/none: no such folder, and not to be had from the hub",
        str(tmp_path / "none"): "none: no such folder",
        str(tmp_path / "empty"): "empty: no checkpoint",
        f"{tmp_path / 'empty'}@5": "empty@5: no whole checkpoint of that step; there are none",
        str(tmp_path / "bare"): "bare: no weights in that folder",
    }.items():
        assert said in refused(capsys, tmp_path, [model, name], data)
    for again in (model, f"tiny={model}"):
        said = refused(capsys, tmp_path, [model, again], data)
        assert f"two models are called tiny; name one, as in other={model}" in said
    assert "..=" in refused(capsys, tmp_path, [f"..={model}"], data)


def test_a_model_above_is_called_by_its_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its responses would lie outside of --out if it were called ".."."""
    below = model / "below"
    below.mkdir(exist_ok=True)
    monkeypatch.chdir(below)
    (found,) = models.find([".."])
    assert (found.label, found.folder) == ("tiny", model)


def test_a_damaged_tokenizer_is_named(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken/tokenizer.json").write_text("{")
    assert "broken: the tokenizer cannot be read" in refused(capsys, tmp_path, [tmp_path / "broken"], data)


def test_responses_of_other_settings_are_kept(
    model: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "out/tiny/sums")
    store.open({"temperature": 0.5, "model": "another"})
    store.append([{"problem": 0, "sample": 0, "text": "2", "tokens": 1, "right": True}])
    before = sorted((tmp_path / "out").rglob("*"))
    assert main(Request([str(model)], [str(data)], n=1, out=tmp_path / "out")) == 1
    line = capsys.readouterr().err
    assert "temperature: 0.5 -> 1.0" in line
    assert "model: another -> " in line
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_the_fingerprint_is_the_models(model: Path, tmp_path: Path) -> None:
    save(tmp_path / "same", 0)
    save(tmp_path / "other", 1)
    (tmp_path / "same/README.md").write_text("says nothing")
    same, other, labelled = models.find([str(tmp_path / "same"), str(tmp_path / "other"), f"first={model}"])
    assert labelled.label == "first"
    assert same.fingerprint == labelled.fingerprint != other.fingerprint


@pytest.mark.parametrize(("n", "ks"), [(1, [1]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])])
def test_the_ks_of_a_table(n: int, ks: list[int]) -> None:
    assert samples(n, None) == ks
    assert samples(n, [n, 1, n]) == sorted({1, n})
