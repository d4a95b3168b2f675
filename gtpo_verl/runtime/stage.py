"""What a run that starts is busy with, and why it ended where no exception can carry it: lines in its temporary folder,
for the person at the terminal."""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

BEGAN = "GTPO_VERL_BEGAN"  # environment variable: when the run was started, seconds since 1970
ENDING = "stopping Ray"
_FILE = "stage"
_CAUSE = "cause"
_PHASE = re.compile(r"\bstep (\d+), ([a-z -]+), since (\d+\.\d+)")


def say(stage: str) -> None:
    """Replaces the line, and prints it with the time and the seconds since the run was started. Does nothing in a run
    without a supervisor, or on another node than the supervisor's."""
    folder = _folder()
    if folder is None or not folder.is_dir():
        return
    _write(folder, _FILE, stage)
    now = time.time()
    with suppress(OSError, ValueError):  # output that nobody takes
        after = f" ({now - float(os.environ[BEGAN]):.1f} s)" if BEGAN in os.environ else ""
        print(f"{time.strftime('%H:%M:%S', time.localtime(now))}{after} {stage}", flush=True)


def say_phase(step: int, phase: str) -> None:
    """Prints that a phase of a training step begins, and when, for whoever watches the machine meanwhile."""
    with suppress(OSError, ValueError):  # output that nobody takes
        print(f"step {step}, {phase}, since {time.time():.2f}", flush=True)


def phases(log: str) -> list[tuple[float, int, str]]:
    """Beginnings of phases in a log, whatever stands around its lines: seconds since 1970, step, phase."""
    return [(float(since), int(step), phase) for step, phase, since in _PHASE.findall(log)]


def read(folder: Path) -> str | None:
    """The line; None where nothing was said yet."""
    with suppress(OSError):
        return (folder / _FILE).read_text(encoding="utf-8")
    return None


def say_cause(cause: str, folder: Path | None = None) -> None:
    """Why the run ends, for its driver, which learns nothing but that a process is gone. What was said first stays.

    Args:
        folder: the run's temporary one, where it is not in this process's environment.
    """
    folder = folder or _folder()
    if folder is not None and not (folder / _CAUSE).exists():
        _write(folder, _CAUSE, cause)


def read_cause() -> str | None:
    """What another process of this run said that it ended for."""
    folder = _folder()
    with suppress(OSError):
        return (folder / _CAUSE).read_text(encoding="utf-8") if folder is not None else None
    return None


def _folder() -> Path | None:
    folder = os.environ.get("GTPO_VERL_TMP")
    return Path(folder) if folder is not None else None


def _write(folder: Path, name: str, text: str) -> None:
    with suppress(OSError):
        partial = folder / f"{name}.{os.getpid()}"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
