"""Metrics, then the checkpoint of their step: a run killed between the two repeats the step, and its line is written
again. verl saves first, so that a step could be missing from the curve for ever."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gtpo_verl.configuration.checks import checkpoints_to_keep
from gtpo_verl.run_folder.checkpoints import CheckpointFolder
from gtpo_verl.run_folder.metrics_history import MetricsHistory


class LogThenSave:
    """verl's `Tracking`, calling `after_log` once, after the next call of `log`."""

    def __init__(self, tracking: Any):
        self._tracking = tracking
        self.after_log: Callable[[], None] | None = None

    def log(self, data: dict[str, Any], step: int) -> None:
        self._tracking.log(data=data, step=step)
        save, self.after_log = self.after_log, None
        if save is not None:
            save()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracking, name)


def attach(tracking: Any, history: MetricsHistory) -> LogThenSave:
    """To be called once the loggers are open, which empties the metrics file: puts back the lines of the steps that
    were trained before. A `LogThenSave` is returned as it is."""
    if isinstance(tracking, LogThenSave):
        return tracking
    history.restore(tracking.logger.get("file"))
    return LogThenSave(tracking)


def save_and_keep_last(save: Callable[[], None], config: DictConfig, step: int) -> None:
    """Has verl save a checkpoint, then deletes what `trainer.max_actor_ckpt_to_keep` does not keep.

    Args:
        save: verl's method, with `config` in its trainer.
        config: the whole configuration.
        step: of the checkpoint.
    """
    if OmegaConf.select(config, "actor_rollout_ref.actor.checkpoint.async_save"):
        save()  # Megatron's: is not written yet when this returns, and named later
        return
    checkpoints = CheckpointFolder.of_run(config, reads=False)
    keep = checkpoints_to_keep(config)
    checkpoints.set_aside(step)
    with _without_verls_limit(config.trainer):
        save()
    checkpoints.saved(step, keep)


@contextmanager
def _without_verls_limit(trainer: DictConfig) -> Iterator[None]:
    """verl's workers delete by what they remember and before the checkpoint is complete; here they delete nothing."""
    names = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep", "remove_previous_ckpt_in_save")
    limits = {name: trainer[name] for name in names if name in trainer}
    trainer.update(dict.fromkeys(limits))
    try:
        yield
    finally:
        trainer.update(limits)
