"""The folder of a run's checkpoints after whatever may happen to the process that writes it."""

import json
import os
import shutil
from pathlib import Path

import actors
import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from gtpo_verl.run_folder.checkpoints import TRACKER, CheckpointFolder, check_resume, resumed_step


class Killed(Exception):
    """Where a process dies."""


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints")


def write_actor(folder: CheckpointFolder, step: int, mark: str = "") -> None:
    actors.write_actor(folder.of_step(step) / "actor", mark=f"{step}{mark}")


def write(folder: CheckpointFolder, step: int, mark: str = "") -> None:
    """A checkpoint and its name, in verl's order (`PPOTrainer._save_checkpoint`)."""
    write_actor(folder, step, mark)
    torch.save({"step": step}, folder.of_step(step) / "data.pt")
    (folder.path / TRACKER).write_text(str(step))


def save(folder: CheckpointFolder, step: int, keep: int | None, mark: str = "") -> None:
    folder.set_aside(step)
    write(folder, step, mark)
    folder.saved(step, keep)


def steps(folder: CheckpointFolder) -> list[int]:
    """All that lies there, which is whole checkpoints and the tracker file alone."""
    names = sorted(path.name for path in folder.path.iterdir())
    assert TRACKER in names
    names.remove(TRACKER)
    assert all((folder.path / name / "actor/model_world_size_1_rank_0.pt").exists() for name in names)
    return sorted(int(name.removeprefix("global_step_")) for name in names)


def content(folder: CheckpointFolder, step: int) -> str:
    return actors.mark_of(folder.of_step(step) / "actor")


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [5]), (2, [4, 5]), (4, [2, 3, 4, 5]), (9, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])]
)
def test_keeps_the_last(folder: CheckpointFolder, keep: int | None, left: list[int]) -> None:
    for step in range(1, 6):
        save(folder, step, keep)
    assert steps(folder) == left
    assert folder.resumable() == 5


def test_keeps_the_last_of_several_processes(folder: CheckpointFolder) -> None:
    for step in range(1, 6):
        save(CheckpointFolder(folder.path), step, 2)  # knows nothing but what lies there
    assert steps(folder) == [4, 5]


def test_at_no_time_less_than_promised(folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is deleted, `keep` whole checkpoints lie there, the newest of them named."""
    seen = []
    real = shutil.rmtree

    def look(path, *args, **kwargs):
        whole = [step for step in range(1, 9) if folder._is_whole(step)]
        seen.append((folder.named(), whole[-2:]))
        real(path, *args, **kwargs)

    for step in (1, 2):
        save(folder, step, 2)
    monkeypatch.setattr(shutil, "rmtree", look)
    save(folder, 3, 2)
    assert seen
    assert all(state == (3, [2, 3]) for state in seen)


def test_what_was_left_half_written_or_half_deleted_goes(folder: CheckpointFolder) -> None:
    save(folder, 1, 2)
    write_actor(folder, 2)  # killed before data.pt
    (folder.path / "global_step_3").mkdir()
    torch.save({}, folder.of_step(3) / "data.pt")  # what verl's own limit leaves
    shutil.copytree(folder.of_step(1), folder.path / "global_step_0.deleting")
    save(folder, 4, 2)
    assert steps(folder) == [1, 4]


def test_later_steps_are_left_alone(folder: CheckpointFolder) -> None:
    """A run that goes on from an earlier checkpoint (trainer.resume_mode=resume_path) writes these anew, in time."""
    for step in (2, 4, 6, 8):
        save(folder, step, None)
    save(folder, 5, 1)
    assert steps(folder) == [5, 6, 8]


def test_nothing_goes_while_the_newest_is_not_whole_or_not_named(folder: CheckpointFolder) -> None:
    for step in (1, 2, 3):
        save(folder, step, None)
    write_actor(folder, 4)
    folder.saved(4, 1)
    assert folder.of_step(1).exists()
    torch.save({}, folder.of_step(4) / "data.pt")
    folder.saved(4, 1)
    assert folder.of_step(1).exists()


@pytest.mark.parametrize("survives", ["the old one", "the new one"])
def test_killed_while_a_step_is_written_again(folder: CheckpointFolder, survives: str) -> None:
    save(folder, 1, 2, mark=" old")
    folder.set_aside(1)
    if survives == "the new one":
        write(folder, 1, mark=" new")
    else:
        write_actor(folder, 1, mark=" half")
    assert folder.resumable() == 1  # as the driver sees it before the trainer mends it
    folder.mend()
    assert steps(folder) == [1]
    assert content(folder, 1) == ("1 new" if survives == "the new one" else "1 old")


@pytest.mark.parametrize("half_written", [False, True])
def test_killed_again_without_being_mended(folder: CheckpointFolder, half_written: bool) -> None:
    """As with trainer.resume_mode=disable, which starts over whatever lies there."""
    save(folder, 1, 2, mark=" old")
    folder.set_aside(1)
    write_actor(folder, 1, mark=" half") if half_written else write(folder, 1, mark=" second")
    folder.set_aside(1)
    assert folder.resumable() == 1
    write(folder, 1, mark=" third")
    folder.saved(1, 2)
    assert steps(folder) == [1]
    assert content(folder, 1) == "1 third"


def test_a_half_written_one_is_not_mixed_with_the_new(folder: CheckpointFolder) -> None:
    write_actor(folder, 1)
    (folder.of_step(1) / "actor/model_world_size_2_rank_1.pt").touch()
    save(folder, 1, 2)
    assert not (folder.of_step(1) / "actor/model_world_size_2_rank_1.pt").exists()


@pytest.mark.parametrize("text", ["", "4", "seven", "9"])
def test_a_tracker_file_that_names_nothing_whole(folder: CheckpointFolder, text: str) -> None:
    for step in (1, 2):
        save(folder, step, None)
    write_actor(folder, 4)
    (folder.path / TRACKER).write_text(text)
    assert folder.resumable() == 2
    folder.mend()
    assert (folder.path / TRACKER).read_text() == "2"


def test_a_tracker_file_alone(folder: CheckpointFolder) -> None:
    folder.path.mkdir()
    (folder.path / TRACKER).write_text("")
    with pytest.raises(ValueError, match=f"{TRACKER} names no step"):
        folder.resumable()
    (folder.path / TRACKER).write_text("7")
    assert folder.resumable() == 0


def test_no_folder_yet(folder: CheckpointFolder) -> None:
    assert folder.resumable() == 0
    folder.mend()
    assert not folder.path.exists()


@pytest.mark.parametrize("keep", [1, 2])
def test_killed_anywhere(folder: CheckpointFolder, keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before each renaming and each deletion of files in turn: the newest whole checkpoint is gone on from, and
    the next save leaves what is promised."""
    reached = 0
    for dies_at in range(12):
        shutil.rmtree(folder.path, ignore_errors=True)
        for step in (1, 2, 3):
            save(folder, step, keep)
        save(folder, 2, keep, mark=" again")  # goes on from 1 and writes 2 anew; 3 lies ahead
        calls = 0

        def die(real, dies_at=dies_at):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls > dies_at:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for module, name in ((os, "replace"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(module, name, die(getattr(module, name)))
            try:
                save(folder, 3, keep, mark=" again")
            except Killed:
                reached += 1
        assert folder.resumable() in (2, 3)
        folder.mend()
        expected = folder.resumable()
        assert folder.named() == expected
        assert content(folder, expected).startswith(str(expected))
        save(folder, 4, keep)
        assert steps(folder) == list(range(4 - keep + 1, 5))
    assert reached > 3


def test_what_cannot_be_deleted_does_not_end_the_run(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(folder, 1, 1)
    real = os.replace

    def replace(source, target):
        if str(target).endswith(".deleting"):
            raise PermissionError(13, "not yours")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    save(folder, 2, 1)
    assert folder.resumable() == 2
    assert "global_step_1: cannot be deleted" in caplog.text


def trainer(folder: CheckpointFolder, **keys) -> DictConfig:
    defaults = {"resume_mode": "auto", "resume_from_path": None, "nnodes": 1, "n_gpus_per_node": 2}
    return OmegaConf.create({"trainer": {"default_local_dir": str(folder.path), **defaults, **keys}})


def test_another_number_of_ranks_is_refused(folder: CheckpointFolder) -> None:
    check_resume(trainer(folder))
    save(folder, 3, None)
    (folder.of_step(3) / "actor/fsdp_config.json").write_text(json.dumps({"world_size": 2}))
    check_resume(trainer(folder))
    check_resume(trainer(folder, nnodes=2, n_gpus_per_node=1))
    check_resume(trainer(folder, n_gpus_per_node=4, resume_mode="disable"))
    for keys in ({}, {"resume_mode": "resume_path", "resume_from_path": str(folder.of_step(3))}):
        with pytest.raises(ValueError, match=r"global_step_3 was saved by 2 ranks, .*n_gpus_per_node = 4"):
            check_resume(trainer(folder, n_gpus_per_node=4, **keys))


@pytest.mark.parametrize("path", [None, "nowhere/global_step_3", ".", "checkpoints/global_step_3/actor"])
def test_a_path_that_is_no_checkpoint_is_refused(folder: CheckpointFolder, path: str | None) -> None:
    save(folder, 3, None)
    given = str(folder.path.parent / path) if path else None
    with pytest.raises(FileNotFoundError, match=r"trainer\.resume_from_path=.* is no checkpoint"):
        check_resume(trainer(folder, resume_mode="resume_path", resume_from_path=given))


@pytest.mark.parametrize("mode", ["Auto", "resume", "none", None])
def test_an_unknown_mode_is_refused(folder: CheckpointFolder, mode: str | None) -> None:
    """verl notices once the model is loaded, as an unset variable."""
    with pytest.raises(ValueError, match=rf"trainer\.resume_mode={mode} is none of auto, disable, resume_path"):
        check_resume(trainer(folder, resume_mode=mode))


def test_the_step_of_every_mode(folder: CheckpointFolder) -> None:
    assert resumed_step(trainer(folder)) == 0
    for step in (3, 6):
        save(folder, step, None)
    assert resumed_step(trainer(folder)) == 6
    assert resumed_step(trainer(folder, resume_mode="disable")) == 0
    for path in (f"{folder.of_step(3)}", f"{folder.of_step(3)}/"):
        assert resumed_step(trainer(folder, resume_mode="resume_path", resume_from_path=path)) == 3


@pytest.mark.parametrize("ending", ["", "/", "//", "/."])
def test_verl_goes_on_from_a_path_as_it_is_typed(folder: CheckpointFolder, ending: str) -> None:
    from unittest.mock import Mock

    from verl.trainer.ppo.v1 import trainer_sync  # noqa: F401  (whose import puts our trainer in place)

    from gtpo_verl.verl_plugin.trainer import GtpoTrainer

    save(folder, 3, None)
    path = f"{folder.of_step(3)}{ending}"
    config = trainer(
        folder, resume_mode="resume_path", resume_from_path=path, del_local_ckpt_after_load=False, n_gpus_per_node=1
    )
    check_resume(config)
    resumed = object.__new__(GtpoTrainer)
    resumed.config, resumed.trainer_mode, resumed.use_critic = config, "sync", False
    resumed.actor_rollout_wg, resumed.train_dataloader = Mock(), Mock()
    resumed._load_checkpoint()
    assert resumed.global_steps == 3
    resumed.train_dataloader.load_state_dict.assert_called_once_with({"step": 3})


def test_one_that_was_set_aside_is_checked_where_it_lies(folder: CheckpointFolder) -> None:
    save(folder, 3, None)
    (folder.of_step(3) / "actor/fsdp_config.json").write_text(json.dumps({"world_size": 2}))
    folder.set_aside(3)
    for half_written in (False, True):
        if half_written:
            write_actor(folder, 3)
        with pytest.raises(ValueError, match="was saved by 2 ranks"):
            check_resume(trainer(folder, n_gpus_per_node=4))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"world_size": null}'])
def test_a_damaged_number_of_ranks_is_named(folder: CheckpointFolder, text: str) -> None:
    save(folder, 3, None)
    (folder.of_step(3) / "actor/fsdp_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"global_step_3/actor/fsdp_config\.json: no `world_size`"):
        check_resume(trainer(folder))
