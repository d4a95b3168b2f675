"""The folder of a run's checkpoints: which of them are whole, which one a run goes on from, which are kept.

verl writes `global_step_N/actor`, then `global_step_N/data.pt`, then the number N into
`latest_checkpointed_iteration.txt`. Its own limit (`trainer.max_actor_ckpt_to_keep`,
verl/utils/checkpoint/checkpoint_manager.py) knows only what the same process saved, leaves the `data.pt` of what it
deletes, and with a limit of 1 deletes the old actor before the tracker file names the new one. Here a checkpoint is
kept or deleted whole, by what lies in the folder, and only once a newer one is whole and named.
"""

import json
import logging
import os
import re
import shutil
import zipfile
from pathlib import Path

from omegaconf import DictConfig

logger = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
_DELETING = ".deleting"
_REPLACED = ".replaced"


class CheckpointFolder:
    """Checkpoints `global_step_N` of one run, and the tracker file beside them.

    Every change leaves a folder that `mend` can put right, wherever the process is killed: what is deleted is renamed
    first, and what is written anew is set aside until its successor is whole.

    Args:
        path: `trainer.default_local_dir`; need not exist yet.
    """

    def __init__(self, path: Path):
        self.path = path

    def of_step(self, step: int) -> Path:
        return self.path / f"global_step_{step}"

    def resumable(self) -> int:
        """The step that a run goes on from, 0 for none: what the tracker file names, or the newest whole checkpoint
        where it names none that is whole.

        Raises:
            ValueError: the tracker file holds no number and no checkpoint is whole.
        """
        tracker = self.path / TRACKER
        if not tracker.exists():
            return 0
        named = self.named()
        if named and (self._is_whole(named) or self._is_set_aside(named)):
            return named
        whole = [step for step in self._steps() if self._is_whole(step) or self._is_set_aside(step)]
        if whole:
            return whole[-1]
        if named is None:
            raise ValueError(f"{tracker} names no step, and no checkpoint beside it is whole; delete it to start anew")
        # Not whole by our measure, as when only `actor` was copied here; verl knows what it can do with it.
        return named if self.of_step(named).exists() else 0

    def named(self) -> int | None:
        """The step in the tracker file; None where it holds no number, as after a crash of the process writing it."""
        tracker = self.path / TRACKER
        text = tracker.read_text().strip() if tracker.exists() else ""
        return int(text) if text.isdigit() else None

    def mend(self) -> None:
        """Puts right what a killed process left: half-written and half-deleted checkpoints, a torn tracker file.

        Raises:
            ValueError: as `resumable`.
        """
        for aside in self.path.glob(f"global_step_*{_REPLACED}"):
            folder = aside.with_name(aside.name.removesuffix(_REPLACED))
            if _is_whole(folder):
                self._delete(aside)
            else:
                self._delete(folder)
                os.replace(aside, folder)
        self._empty_bin()
        step = self.resumable()
        if step and step != self.named():
            logger.warning(f"{self.path / TRACKER} names no whole checkpoint; going on from step {step}")
            partial = self.path / f"{TRACKER}.part"
            partial.write_text(str(step))
            os.replace(partial, self.path / TRACKER)

    def set_aside(self, step: int) -> None:
        """Makes room for a checkpoint of this step, which a run resumed from an earlier one writes again."""
        folder = self.of_step(step)
        if self._is_whole(step):
            aside = Path(f"{folder}{_REPLACED}")
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
        self._delete(Path(f"{self.of_step(step)}{_REPLACED}"))
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
        return _is_whole(self.of_step(step))

    def _is_set_aside(self, step: int) -> bool:
        return _is_whole(Path(f"{self.of_step(step)}{_REPLACED}"))

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
        ValueError: shards of another number of FSDP ranks, each of which loads its own; or as `resumable`.
    """
    trainer = config.trainer
    if trainer.resume_mode == "resume_path":
        checkpoint = Path(trainer.resume_from_path or "")
        if not re.fullmatch(r"global_step_\d+", checkpoint.name) or not (checkpoint / "actor").is_dir():
            raise FileNotFoundError(
                f"trainer.resume_from_path={trainer.resume_from_path} is no checkpoint: no folder global_step_N with "
                "`actor` in it"
            )
    else:
        folder = CheckpointFolder(Path(trainer.default_local_dir))
        step = folder.resumable() if trainer.resume_mode == "auto" else 0
        if step == 0:
            return
        checkpoint = folder.of_step(step)
    saved = checkpoint / "actor/fsdp_config.json"
    wanted = trainer.nnodes * trainer.n_gpus_per_node
    ranks = json.loads(saved.read_text())["world_size"] if saved.exists() else wanted
    if ranks != wanted:
        raise ValueError(
            f"{checkpoint} was saved by {ranks} ranks, and trainer.nnodes x trainer.n_gpus_per_node = {wanted}. Go on "
            "with as many ranks; or begin anew from its model (gtpo-verl convert), or from the start "
            "(trainer.resume_mode=disable)"
        )


def _is_whole(folder: Path) -> bool:
    """Whether everything was written: `data.pt`, a zip file whose directory is its end, is written last."""
    return (folder / "actor").is_dir() and zipfile.is_zipfile(folder / "data.pt")
