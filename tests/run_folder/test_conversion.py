"""Shards of two ranks, written by verl's FSDP engine, become a Hugging Face model; or a refusal names the file.

tests/e2e/test_resume.py converts the checkpoint of a real run.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder
from gtpo_verl.run_folder.conversion import check_actor, convert, find_actor

pytestmark = pytest.mark.timeout(600)
CASES = ["untied-fsdp2", "tied-fsdp2", "untied-fsdp"]


def save_models(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from gtpo_verl.tasks.tiny_model import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(1)
    for name in ("tied", "untied"):
        config = Qwen2Config(
            vocab_size=len(tokenizer) | 1,  # odd: the ranks hold parts of unlike sizes
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=name == "tied",
        )
        Qwen2ForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, and the actors of two ranks that loaded them."""
    folder = tmp_path_factory.mktemp("saved")
    save_models(folder)
    script = str(Path(__file__).with_name("checkpoint_process.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(folder), str(rank), "2"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-4000:]
    return folder


@pytest.fixture
def actor(saved: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(saved / "untied-fsdp2/actor", tmp_path / "checkpoints/global_step_3/actor"))


@pytest.mark.parametrize("case", CASES)
def test_is_the_model_that_the_ranks_hold(saved: Path, tmp_path: Path, case: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = convert(saved / case, tmp_path / "deep/model")
    original = AutoModelForCausalLM.from_pretrained(saved / case.split("-")[0], dtype=torch.bfloat16)
    converted = AutoModelForCausalLM.from_pretrained(output, dtype="auto")
    assert converted.dtype == torch.bfloat16
    assert converted.state_dict().keys() == original.state_dict().keys()
    for name, weight in original.state_dict().items():
        assert torch.equal(converted.state_dict()[name], weight), name
    tied = converted.lm_head.weight is converted.model.embed_tokens.weight
    assert tied == case.startswith("tied")
    tokens = AutoTokenizer.from_pretrained(output)("2+3-1=?", return_tensors="pt").input_ids
    assert AutoTokenizer.from_pretrained(output).decode(tokens[0]) == "2+3-1=?"
    with torch.no_grad():
        assert torch.equal(converted(tokens).logits, original(tokens).logits)
    assert [path.name for path in output.parent.iterdir()] == ["model"]


def test_takes_the_latest_of_a_run(actor: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    torch.save({}, actor.parent / "data.pt")
    (checkpoints / TRACKER).write_text("3")
    assert [find_actor(path) for path in (tmp_path, checkpoints, actor.parent, actor)] == [actor] * 4


def test_finds_what_was_set_aside(actor: Path, tmp_path: Path) -> None:
    """A run that was killed while it wrote its latest step anew."""
    torch.save({}, actor.parent / "data.pt")
    (tmp_path / "checkpoints" / TRACKER).write_text("3")
    CheckpointFolder(tmp_path / "checkpoints").set_aside(3)
    actor.mkdir(parents=True)  # half of the new one
    found = find_actor(tmp_path)
    assert found != actor
    check_actor(found)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        convert(tmp_path / "nowhere", tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=f"no checkpoint: .*{TRACKER}"):
        convert(tmp_path, tmp_path / "model")


@pytest.mark.parametrize(
    "name",
    [
        "fsdp_config.json",
        "model_world_size_2_rank_1.pt",
        "huggingface/config.json",
        "huggingface/tokenizer_config.json",
    ],
)
def test_names_what_is_missing(actor: Path, name: str, tmp_path: Path) -> None:
    (actor / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        convert(actor.parent, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["fsdp_config.json", "model_world_size_2_rank_1.pt"])
def test_names_what_is_cut_off(actor: Path, name: str) -> None:
    whole = (actor / name).read_bytes()
    (actor / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=name):
        check_actor(actor)


def test_writes_over_nothing(actor: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(FileExistsError, match="model exists already"):
        convert(actor.parent, tmp_path / "model")


def test_a_failure_on_the_way_leaves_nothing(actor: Path, tmp_path: Path) -> None:
    # Read last, when the weights are written.
    (actor / "huggingface/tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting property name"):
        convert(actor.parent, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


SIGNALLED = """
import os, signal, sys, time
from gtpo_verl import cli
from gtpo_verl.run_folder import conversion
merge = conversion._merge
def merge_then_wait(actor, target):
    merge(actor, target)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
conversion._merge = merge_then_wait
sys.exit(cli.main(["convert", *sys.argv[1:]]))
"""


def test_stopped_on_the_way_leaves_nothing(actor: Path, tmp_path: Path) -> None:
    (tmp_path / "model.part").mkdir()  # of one that was killed
    command = [sys.executable, "-c", SIGNALLED, str(actor.parent), str(tmp_path / "model")]
    result = subprocess.run(command, cwd=tmp_path / "checkpoints", capture_output=True, text=True, timeout=240)
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints"]


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gtpo_verl.cli", "convert", str(tmp_path / "nowhere"), str(tmp_path / "model")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {tmp_path / 'nowhere'}: no such folder\n"
