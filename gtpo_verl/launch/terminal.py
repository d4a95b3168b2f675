"""What a person sees of a run: where its log is, a progress bar, and how it ended."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gtpo_verl.launch.supervisor import run_training
from gtpo_verl.report.metrics_log import MetricsError, parse_line
from gtpo_verl.report.progress import ProgressDisplay
from gtpo_verl.runtime import disks
from gtpo_verl.runtime.run_info import RunInfo

_CHANGES_SHOWN = 8
_SHARED_MEMORY = [folder for folder in ("/dev/shm",) if Path(folder).is_dir()]


def train_with_progress(overrides: Sequence[str], console: Console | None = None) -> tuple[int, RunInfo | None]:
    """Trains with Hydra `overrides`, showing progress; exit code and whereabouts as `supervise` returns them."""
    console = console or Console()
    said: set[str] = set()
    full: dict[str, None] = {}

    def say(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(text, highlight=False, soft_wrap=True)

    with ProgressDisplay(console) as display:

        def watch(info: RunInfo | None, stage: str | None) -> None:
            # While the run's files are there: they are gone when it has ended, and room is made.
            written = [] if info is None else [info.run_dir, info.checkpoints]
            full.update(dict.fromkeys(disks.full([*written, tempfile.gettempdir(), *_SHARED_MEMORY])))
            if stage is not None:
                display.wait(stage)
            if info is None or info.finished:
                return
            say(f"{info.name}: log {info.log}")
            for remark in info.remarks:
                say(f"{info.name}: {remark}")
            if info.resumed_step and not info.validates_only:
                say(f"{info.name}: goes on from step {info.resumed_step}{_differing(info.changes)}")
            display.update(info.name, Path(info.metrics), info.total_steps, info.resumed_step)

        try:
            code, info = run_training(overrides, watch)
        except OSError as error:  # no folder for the run's temporary files, no process
            say(f"error: {error}")
            return 1, None
    if code != 0:
        for folder in full:
            say(f"error: {folder}: No space left on device")
    if info is not None and code != 0:
        ending = f"stopped by signal {code - 128}" if code > 128 else f"failed with exit code {code}"
        say(
            f"{info.name}: {ending}; log {info.log}; unless trainer.resume_mode says otherwise, "
            "the same command goes on from the last checkpoint, if there is one"
        )
    if info is not None and code == 0 and info.validates_only:
        say(f"{info.name}: {_validation(Path(info.metrics))}")
    return code, info


def _validation(metrics: Path) -> str:
    """The last line's scores, as verl names them; where they are if there is no such line."""
    try:
        step, values = parse_line(metrics.read_bytes().splitlines()[-1], str(metrics))
    except (OSError, IndexError, MetricsError):  # `trainer.logger` without `file`
        return "validated; the log has the scores"
    scores = ", ".join(f"{name} {value:.4g}" for name, value in values.items() if name.startswith("val-core/"))
    return f"step {step} validated: {scores} ({metrics})"


def _differing(changes: Sequence[str]) -> str:
    if not changes:
        return ""
    more = f", and {len(changes) - _CHANGES_SHOWN} more" if len(changes) > _CHANGES_SHOWN else ""
    return f", with another configuration than before: {', '.join(changes[:_CHANGES_SHOWN])}{more}"
