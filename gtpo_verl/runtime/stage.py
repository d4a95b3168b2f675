"""What a run that starts is busy with, and why it ended where no exception can carry it: lines in its temporary folder,
for the person at the terminal."""

import os
from contextlib import suppress
from pathlib import Path

_FILE = "stage"
_CAUSE = "cause"


def say(stage: str) -> None:
    """Replaces the line. Does nothing in a run without a supervisor, or on another node than the supervisor's."""
    _write(_FILE, stage)


def read(folder: Path) -> str | None:
    """The line; None where nothing was said yet."""
    with suppress(OSError):
        return (folder / _FILE).read_text()
    return None


def say_cause(cause: str) -> None:
    """What this process ends itself for: its driver learns nothing but that it died."""
    _write(_CAUSE, cause)


def read_cause() -> str | None:
    """What another process of this run said that it ended for."""
    folder = os.environ.get("GTPO_VERL_TMP")
    with suppress(OSError):
        return Path(folder, _CAUSE).read_text(encoding="utf-8") if folder is not None else None
    return None


def _write(name: str, text: str) -> None:
    folder = os.environ.get("GTPO_VERL_TMP")
    if folder is None:
        return
    with suppress(OSError):
        partial = Path(folder, f"{name}.{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(Path(folder, name))
