"""Metrics that survive a resume: verl's `file` logger opens its file anew at every start (verl/utils/tracking.py,
`FileLogger`)."""

import json
import math
import os
from pathlib import Path
from typing import Any


class MetricsHistory:
    """The lines of a metrics file up to the step that a run resumes from.

    They are put aside before verl truncates the file and written back as its first lines. A run that is killed
    in between finds them at its next start.
    """

    def __init__(self, aside: Path, lines: bytes):
        self._aside = aside
        self._lines = lines

    @classmethod
    def take(cls, trainer: Any, resumed_step: int, trains: bool = True) -> "MetricsHistory":
        """Reads the file that verl's logger is about to open.

        Args:
            trainer: the configuration's `trainer` (`logger`, `project_name`, `experiment_name`).
            resumed_step: step of the checkpoint; lines after it will be trained, and logged, again. 0: a new run,
                which keeps a file it finds under the name `<file>.previous`.
            trains: false: a validation alone, from whichever checkpoint, adds to the file and takes nothing away.
        """
        path = metrics_path(trainer.project_name, trainer.experiment_name)
        aside = path.with_name(path.name + ".resume")
        if "file" not in trainer.logger:
            return cls(aside, b"")
        source = aside if aside.exists() else path
        if trains and resumed_step == 0:
            if source.exists() and source.stat().st_size > 0:
                os.replace(source, path.with_name(path.name + ".previous"))
            aside.unlink(missing_ok=True)
            return cls(aside, b"")
        last = resumed_step if trains else math.inf
        kept = [line for line in _lines(source) if _step(line) <= last]
        history = cls(aside, b"".join(kept))
        partial = aside.with_name(aside.name + ".part")
        partial.write_bytes(history._lines)
        os.replace(partial, aside)
        return history

    def restore(self, file_logger: Any | None) -> None:
        """Writes the lines into the logger's freshly opened, still empty file."""
        if file_logger is None or not self._lines:
            return
        file_logger.fp.write(self._lines)
        os.fsync(file_logger.fp.fileno())
        self._aside.unlink()


def metrics_path(project_name: str, experiment_name: str) -> Path:
    """Where verl's file logger writes: VERL_FILE_LOGGER_PATH, else VERL_FILE_LOGGER_ROOT/project/experiment.jsonl."""
    explicit = os.environ.get("VERL_FILE_LOGGER_PATH")
    if explicit is not None:
        return Path(explicit)
    root = Path(os.environ.get("VERL_FILE_LOGGER_ROOT", ".")).expanduser()
    return root / project_name / f"{experiment_name}.jsonl"


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


def _step(line: bytes) -> float:
    """The step of a line; NaN, which is in no range, for the torn last line that a killed run leaves."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else math.nan
    except ValueError:
        return math.nan
