"""The folder of a run's checkpoints: which of them are whole, which one a run goes on from, which are kept.

verl writes `global_step_N/actor`, then `global_step_N/data.pt`, then the number N into
`latest_checkpointed_iteration.txt`. Its own limit (`trainer.max_actor_ckpt_to_keep`,
verl/utils/checkpoint/checkpoint_manager.py) knows only what the same process saved, leaves the `data.pt` of what it
deletes, and with a limit of 1 deletes the old actor before the tracker file names the new one. Here a checkpoint is
kept or deleted whole, by what lies in the folder, and only once a newer one is whole and named.
"""

import logging
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.run_folder.wholeness import RANKS_FILE, SHARDS, checkpoint_problem, ranks_of
from gtpo_verl.runtime.whole_file import whole_file

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
_RESUME_MODES = ("auto", "disable", "resume_path")
_DELETING = ".deleting"
_REPLACED = ".replaced"


class CheckpointFolder:
    """Checkpoints `global_step_N` of one run, and the tracker file beside them.

    Every change leaves a folder that `mend` can put right, wherever the process is killed: what is deleted is renamed
    first, and what is written anew is set aside until its successor is whole.

    Args:
        path: `trainer.default_local_dir`; need not exist yet.
        shards: what must be there of every rank for a checkpoint to be whole (`wholeness.SHARDS`); None: what is there.
    """

    def __init__(self, path: Path, shards: Sequence[str] | None = None):
        self.path = path
        self.shards = shards

    @classmethod
    def of_run(cls, config: DictConfig, reads: bool = True) -> "CheckpointFolder":
        """That of a run's configuration.

        Args:
            reads: whole is what the run can go on from (`actor.checkpoint.load_contents`); false: what it writes
                (`save_contents`).
        """
        return cls(
            Path(config.trainer.default_local_dir), _shards(config, "load_contents" if reads else "save_contents")
        )

    def of_step(self, step: int) -> Path:
        return self.path / f"global_step_{step}"

    def located(self, step: int) -> Path:
        """Where the checkpoint of this step lies: set aside while its successor is not whole."""
        folder, aside = self.of_step(step), self._aside(step)
        return aside if self._whole(aside) and not self._whole(folder) else folder

    def whole(self) -> list[int]:
        """Steps of all whole checkpoints, ascending; those that were set aside included."""
        return [step for step in self._steps() if self._whole(self.located(step))]

    def resumable(self) -> int:
        """The step that a run goes on from, 0 for none: what the tracker file names, or the newest whole checkpoint
        where it names none that is whole.

        Raises:
            ValueError: there are checkpoints and none is whole; names the file that the newest lacks.
        """
        named = self.named()
        if named and self._whole(self.located(named)):
            return named
        if whole := self.whole():
            return whole[-1]
        if named and self.of_step(named).exists():
            problem = self._problem(named)
            # As when only `actor` was copied here: verl begins with the first prompt.
            if problem == f"{self.of_step(named) / 'data.pt'}: no such file":
                return named
            raise ValueError(
                f"{problem}; no other checkpoint is whole. Put the file back, or begin anew "
                "(trainer.resume_mode=disable)"
            )
        if named is None and (self.path / TRACKER).exists():
            raise ValueError(
                f"{self.path / TRACKER} names no step, and no checkpoint beside it is whole; delete it to start anew"
            )
        return 0

    def named(self) -> int | None:
        """The step in the tracker file; None where it holds no number, as after a crash of the process writing it."""
        tracker = self.path / TRACKER
        text = tracker.read_bytes().strip() if tracker.exists() else b""
        return int(text) if text.isdigit() else None

    def passed_over(self) -> str | None:
        """Why the run goes on from another checkpoint than the tracker file names; None where it does not.

        Raises:
            ValueError: as `resumable`.
        """
        step, named = self.resumable(), self.named()
        if not step or step == named:
            return None
        if named is None:
            return f"{self.path / TRACKER} names no step; the newest whole checkpoint is {self.of_step(step).name}"
        return f"{self._problem(named)}; the newest whole checkpoint is {self.of_step(step).name}"

    def mend(self) -> None:
        """Puts right what a killed process left: half-written and half-deleted checkpoints, a torn tracker file.

        Raises:
            ValueError: as `resumable`.
        """
        for aside in self.path.glob(f"global_step_*{_REPLACED}"):
            folder = aside.with_name(aside.name.removesuffix(_REPLACED))
            if self._whole(folder):
                self._delete(aside)
            else:
                self._delete(folder)
                os.replace(aside, folder)
        self._empty_bin()
        step, remark = self.resumable(), self.passed_over()
        if remark is not None:
            logger.warning(remark)
            with whole_file(self.path / TRACKER) as part:
                part.write_text(str(step), encoding="utf-8")

    def set_aside(self, step: int) -> None:
        """Makes room for a checkpoint of this step, which a run resumed from an earlier one writes again."""
        folder = self.of_step(step)
        if self._is_whole(step):
            aside = self._aside(step)
            self._delete(aside)  # of an earlier kill, after which `mend` was not called (trainer.resume_mode=disable)
            os.replace(folder, aside)
        else:
            self._delete(folder)

    def saved(self, step: int, keep: int | None) -> None:
        """To be called once the checkpoint of `step` is written and named: deletes what is not kept.

        Steps after the named one are left alone: they belong to a run that went further from another checkpoint.

        Args:
            keep: whole checkpoints to keep, this one among them, at least 1; None: all.
        """
        if self.named() != step or not self._is_whole(step):
            return
        self._delete(self._aside(step))
        if keep is not None:
            older = [other for other in self._steps() if other < step]
            whole = [other for other in older if self._is_whole(other)]
            kept = whole[len(whole) - keep + 1 :] if keep <= len(whole) else whole
            for other in older:
                if other not in kept:
                    self._delete(self.of_step(other))
        self._empty_bin()

    def _steps(self) -> list[int]:
        """Steps of all folders, whole or not, ascending; those that were set aside included."""
        pattern = re.compile(rf"global_step_(\d+)(?:{re.escape(_REPLACED)})?")
        matches = map(pattern.fullmatch, os.listdir(self.path) if self.path.exists() else [])
        return sorted({int(match[1]) for match in matches if match})

    def _is_whole(self, step: int) -> bool:
        return self._whole(self.of_step(step))

    def _whole(self, folder: Path) -> bool:
        return checkpoint_problem(folder, self.shards) is None

    def _problem(self, step: int) -> str | None:
        return checkpoint_problem(self.of_step(step), self.shards)

    def _aside(self, step: int) -> Path:
        return Path(f"{self.of_step(step)}{_REPLACED}")

    def _delete(self, folder: Path) -> None:
        """At once for whoever looks: the name goes first. What cannot be deleted costs space, not the run."""
        if not folder.exists():
            return
        doomed = folder.with_name(folder.name + _DELETING)
        try:
            shutil.rmtree(doomed, ignore_errors=True)
            os.replace(folder, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            logger.warning(f"{folder}: cannot be deleted: {error}")

    def _empty_bin(self) -> None:
        for doomed in self.path.glob(f"global_step_*{_DELETING}"):
            shutil.rmtree(doomed, ignore_errors=True)


def check_resume(config: DictConfig) -> None:
    """Refuses a checkpoint that the actor's ranks could not load, before anything starts.

    Raises:
        FileNotFoundError: `trainer.resume_from_path` is no checkpoint.
        ValueError: no such `trainer.resume_mode`; shards of another number of FSDP ranks, each of which loads its own;
            or as `resumable`.
    """
    trainer = config.trainer
    if trainer.resume_mode not in _RESUME_MODES:
        raise ValueError(f"trainer.resume_mode={trainer.resume_mode} is none of {', '.join(_RESUME_MODES)}")
    if trainer.resume_mode == "resume_path":
        checkpoint = Path(trainer.resume_from_path or "")
        if not re.fullmatch(r"global_step_\d+", checkpoint.name) or not (checkpoint / "actor").is_dir():
            raise FileNotFoundError(
                f"trainer.resume_from_path={trainer.resume_from_path} is no checkpoint: no folder global_step_N with "
                "`actor` in it"
            )
    else:
        step = resumed_step(config)
        if step == 0:
            return
        checkpoint = CheckpointFolder.of_run(config).located(step)
    _check_ranks(checkpoint, trainer)
    problem = checkpoint_problem(checkpoint, _shards(config, "load_contents"))
    if problem is not None and problem != f"{checkpoint / 'data.pt'}: no such file":
        raise ValueError(f"{problem}; name another checkpoint (trainer.resume_from_path), or put the file back")


def _check_ranks(checkpoint: Path, trainer: DictConfig) -> None:
    ranks, wanted = saved_ranks(checkpoint / "actor"), trainer.nnodes * trainer.n_gpus_per_node
    if ranks is not None and ranks != wanted:
        raise ValueError(
            f"{checkpoint} was saved by {ranks} ranks, and trainer.nnodes x trainer.n_gpus_per_node = {wanted}. Go on "
            "with as many ranks; or begin anew from its model (gtpo-verl convert), or from the start "
            "(trainer.resume_mode=disable)"
        )


def resumed_checkpoint(config: DictConfig) -> Path | None:
    """The checkpoint that a run goes on from, which `check_resume` has accepted; None for a new run."""
    step = resumed_step(config)
    if config.trainer.resume_mode == "resume_path":
        return Path(config.trainer.resume_from_path)
    return CheckpointFolder.of_run(config).located(step) if step else None


def resumed_step(config: DictConfig) -> int:
    """The step of the checkpoint that a run goes on from, which `check_resume` has accepted; 0 for a new run."""
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        return int(Path(trainer.resume_from_path).name.removeprefix("global_step_"))
    return CheckpointFolder.of_run(config).resumable() if trainer.resume_mode == "auto" else 0


def present(config: DictConfig, step: int) -> int:
    """How many whole checkpoints lie in the run's folder up to `step`, which it goes on from."""
    return sum(older <= step for older in CheckpointFolder.of_run(config).whole())


def saved_ranks(actor: Path) -> int | None:
    """How many FSDP ranks saved this actor; None where no FSDP strategy did.

    Raises:
        ValueError: the file that says so is damaged.
    """
    return ranks_of(actor) if (actor / RANKS_FILE).exists() else None


def _shards(config: DictConfig, contents: str) -> list[str] | None:
    """What verl's FSDP strategies write and read (verl/utils/checkpoint/fsdp_checkpoint_manager.py), else None."""
    actor = OmegaConf.select(config, "actor_rollout_ref.actor")
    if actor is None or not str(actor.get("strategy")).startswith("fsdp"):
        return None
    listed = OmegaConf.select(actor, f"checkpoint.{contents}")
    return [name for name in SHARDS if listed is None or name in listed]
