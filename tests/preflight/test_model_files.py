"""A model folder that is not whole, by the name of the file."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from gtpo_verl.preflight.model_files import model_problems, shard_problem

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As transformers itself writes it, in several shards."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=2)
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_a_whole_model_has_no_problems(folder: Path) -> None:
    assert model_problems(folder) == []


def test_a_single_file_needs_no_index(folder: Path) -> None:
    (folder / INDEX).unlink()
    for file in shards(folder)[1:]:
        file.unlink()
    assert model_problems(folder) == []


def test_weights_are_not_read(folder: Path) -> None:
    """A shard with the right size and header, whose data is a hole in the file."""
    file = shards(folder)[0]
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    with file.open("wb") as target:
        target.write(content[:header])
        target.truncate(len(content))
    assert model_problems(folder) == []


def edit_index(folder: Path, change: Callable[[dict], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard is absent": (lambda f: shards(f)[1].unlink(), "model-00002-of-.*missing"),
    "a shard was cut off while copied": (
        lambda f: cut(shards(f)[1], shards(f)[1].stat().st_size - 1),
        r"model-00002-of-.*bytes, its header promises",
    ),
    "a shard is empty": (lambda f: shards(f)[0].write_bytes(b""), "model-00001-of-.*cut off after 0 bytes"),
    "a shard ends in its header": (lambda f: cut(shards(f)[0], 20), "model-00001-of-.*less than its header"),
    "a shard is a pointer of Git LFS": (
        lambda f: shards(f)[0].write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"),
        "model-00001-of-.*no safetensors file",
    ),
    "a shard has something behind its end": (
        lambda f: shards(f)[0].write_bytes(shards(f)[0].read_bytes() + b"\0"),
        "model-00001-of-.*its header promises",
    ),
    "a header that is no JSON": (
        lambda f: shards(f)[0].write_bytes((4).to_bytes(8, "little") + b"nope"),
        "model-00001-of-.*header is not that of a safetensors file",
    ),
    "the index places a tensor in the wrong shard": (
        lambda f: edit_index(f, lambda i: i["weight_map"].update({"model.norm.weight": shards(f)[0].name})),
        "lacks 1 tensors of the index, the first is model.norm.weight",
    ),
    "the index is no JSON": (lambda f: cut(f / INDEX, 20), f"{INDEX}: not readable as JSON"),
    "the index is a list": (lambda f: (f / INDEX).write_text("[]"), f"{INDEX}: no weight_map"),
    "the index is empty": (lambda f: edit_index(f, lambda i: i.update(weight_map={})), f"{INDEX}: no weight_map"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "config.json: missing"),
    "a broken configuration": (lambda f: (f / "config.json").write_text("{"), "config.json: not readable as JSON"),
    "no weights": (lambda f: [path.unlink() for path in [*shards(f), f / INDEX]], "no weights"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_its_file(folder: Path, fault: str) -> None:
    damage, named = FAULTS[fault]
    damage(folder)
    (problem,) = model_problems(folder)
    assert str(folder) in problem
    assert re.search(named, problem), problem


def test_every_faulty_shard_is_named(folder: Path) -> None:
    for file in shards(folder)[:2]:
        file.unlink()
    assert [problem.endswith("missing") for problem in model_problems(folder)] == [True, True]


def test_older_formats_are_left_to_the_loader(folder: Path) -> None:
    for path in [*shards(folder), folder / INDEX]:
        path.unlink()
    (folder / "pytorch_model.bin").touch()
    assert model_problems(folder) == []


def test_no_such_folder(tmp_path: Path) -> None:
    assert model_problems(tmp_path / "nowhere") == [f"{tmp_path / 'nowhere'}: no such folder"]


def test_a_shard_that_is_a_folder(tmp_path: Path) -> None:
    assert "directory" in str(shard_problem(tmp_path)).lower()
