"""Whichever file of a checkpoint is missing or damaged: a run goes on from an older one and says so, or names it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from actors import write_actor
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder, check_resume, resumed_step
from gtpo_verl.run_folder.conversion import check_actor, find_actor
from gtpo_verl.run_folder.wholeness import archive_problem, checkpoint_problem

RANKS = 2
SHARDS = [f"{kind}_world_size_2_rank_{rank}.pt" for kind in ("model", "optim", "extra_state") for rank in range(RANKS)]
DESCRIBED = [
    "fsdp_config.json",
    "huggingface/config.json",
    "huggingface/tokenizer_config.json",
    "huggingface/tokenizer.json",
]
FILES = ["data.pt", *(f"actor/{name}" for name in [*SHARDS, *DESCRIBED])]


def cut_off(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_off_at_the_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def overwrite(path: Path) -> None:
    """Its end is whole."""
    content = bytearray(path.read_bytes())
    content[len(content) // 4 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 4)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": cut_off,
    "cut off at the end": cut_off_at_the_end,
    "garbage": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "overwritten": overwrite,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def write(checkpoints: Path, *steps: int) -> CheckpointFolder:
    for step in steps:
        write_actor(checkpoints / f"global_step_{step}/actor", ranks=RANKS)
        torch.save({"place": step}, checkpoints / f"global_step_{step}/data.pt")
        (checkpoints / TRACKER).write_text(str(step))
    return CheckpointFolder(checkpoints, ("model", "optimizer", "extra"))


def config(checkpoints: Path, **checkpoint) -> DictConfig:
    trainer = {
        "default_local_dir": str(checkpoints),
        "resume_mode": "auto",
        "resume_from_path": None,
        "nnodes": 1,
        "n_gpus_per_node": RANKS,
    }
    return OmegaConf.create(
        {
            "trainer": trainer,
            "actor_rollout_ref": {"actor": {"strategy": "fsdp2", "checkpoint": checkpoint}},
        }
    )


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_goes_on_from_the_older_one_and_says_so(tmp_path: Path, name: str, damage: str) -> None:
    folder = write(tmp_path, 2, 4)
    DAMAGES[damage](folder.of_step(4) / name)
    check_resume(config(tmp_path))
    assert resumed_step(config(tmp_path)) == 2
    said = folder.passed_over()
    assert said is not None
    assert str(folder.of_step(4) / name) in said or name == "actor/huggingface/tokenizer.json"
    assert "global_step_2" in said
    folder.mend()
    assert folder.named() == 2
    assert folder.passed_over() is None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_names_the_file_where_no_other_is_whole(tmp_path: Path, name: str, damage: str) -> None:
    folder = write(tmp_path, 4)
    DAMAGES[damage](folder.of_step(4) / name)
    named = config(tmp_path)
    named.trainer.update(resume_mode="resume_path", resume_from_path=str(folder.of_step(4)))
    if (name, damage) == ("data.pt", "missing"):  # verl begins with the first prompt
        for wanted in (config(tmp_path), named):
            check_resume(wanted)
            assert resumed_step(wanted) == 4
        return
    for wanted in (config(tmp_path), named):
        with pytest.raises((ValueError, FileNotFoundError), match=name.removesuffix("/tokenizer.json")):
            check_resume(wanted)


@pytest.mark.parametrize("name", [f"actor/{name}" for name in [*SHARDS[:RANKS], *DESCRIBED]])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_conversion_takes_the_older_one_or_names_the_file(tmp_path: Path, name: str, damage: str) -> None:
    folder = write(tmp_path / "checkpoints", 2, 4)
    DAMAGES[damage](folder.of_step(4) / name)
    assert find_actor(tmp_path) == folder.of_step(2) / "actor"
    with pytest.raises((ValueError, FileNotFoundError), match="actor"):
        check_actor(folder.of_step(4) / "actor")


def test_a_conversion_needs_no_optimizer(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", 4)
    for shard in SHARDS[RANKS:]:
        (folder.of_step(4) / "actor" / shard).unlink()
    assert find_actor(tmp_path) == folder.of_step(4) / "actor"
    check_actor(folder.of_step(4) / "actor")


@pytest.mark.parametrize("contents", [["model"], ["model", "extra"], ["model", "optimizer", "extra", "hf_model"]])
def test_what_is_not_read_may_be_absent(tmp_path: Path, contents: list[str]) -> None:
    folder = write(tmp_path, 4)
    names = {"optimizer": "optim", "extra": "extra_state"}
    for content, kind in names.items():
        if content not in contents:
            for rank in range(RANKS):
                (folder.of_step(4) / f"actor/{kind}_world_size_2_rank_{rank}.pt").unlink()
    check_resume(config(tmp_path, load_contents=contents))
    assert resumed_step(config(tmp_path, load_contents=contents)) == 4
    if "optimizer" not in contents:
        with pytest.raises(ValueError, match="optim_world_size_2_rank_0"):
            check_resume(config(tmp_path))


def test_what_a_run_does_not_save_does_not_keep_old_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, 2, 4)
    for shard in tmp_path.glob("global_step_*/actor/optim*"):
        shard.unlink()
    saves = config(tmp_path, save_contents=["model", "extra"], load_contents=["model", "optimizer", "extra"])
    CheckpointFolder.of_run(saves, reads=False).saved(4, keep=1)
    assert not (tmp_path / "global_step_2").exists()


@pytest.mark.parametrize(
    "text", ["²".encode(), b"\xff\xfe4", b"", b"four", b"-4", b"4.0", "٤".encode(), b"\x00" * 8, b"9", None]
)
def test_a_tracker_file_that_names_no_whole_checkpoint(tmp_path: Path, text: bytes | None) -> None:
    folder = write(tmp_path, 2, 4)
    (tmp_path / TRACKER).unlink() if text is None else (tmp_path / TRACKER).write_bytes(text)
    assert resumed_step(config(tmp_path)) == 4
    assert "global_step_4" in str(folder.passed_over())
    folder.mend()
    assert (tmp_path / TRACKER).read_text() == "4"


def test_a_critic_is_looked_at_too(tmp_path: Path) -> None:
    folder = write(tmp_path, 2, 4)
    for step in (2, 4):
        shutil.copytree(folder.of_step(step) / "actor", folder.of_step(step) / "critic")
    assert folder.resumable() == 4
    cut_off(folder.of_step(4) / "critic" / SHARDS[1])
    assert folder.resumable() == 2


def test_actors_of_other_strategies_are_left_to_them(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    (folder.of_step(3) / "actor/dist_ckpt").mkdir(parents=True)
    torch.save({}, folder.of_step(3) / "data.pt")
    (tmp_path / TRACKER).write_text("3")
    assert folder.resumable() == 3


def test_a_large_record_is_looked_for_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "shard.pt"
    torch.save({"large": torch.zeros(1 << 20), "small": torch.zeros(3)}, path)
    assert archive_problem(path) is None
    cut_off_at_the_end(path)
    assert str(path) in str(archive_problem(path))


def test_what_verl_saves_is_whole(tmp_path: Path) -> None:
    assert checkpoint_problem(write(tmp_path, 4).of_step(4), ("model", "optimizer", "extra")) is None


@pytest.mark.parametrize("name", ["vocab.txt", "merges.txt", "tokenizer.model", "chat_template.jinja"])
def test_a_file_of_the_tokenizer_that_is_empty(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, 2, 4)
    path = folder.of_step(4) / "actor/huggingface" / name
    path.write_text("something")
    assert folder.resumable() == 4
    path.write_text("")
    assert folder.resumable() == 2
    assert f"{path}: an empty file" in str(folder.passed_over())
