"""What a run that starts is busy with: a line in its temporary folder, for the person who waits at the terminal."""

import os
from contextlib import suppress
from pathlib import Path

_FILE = "stage"


def say(stage: str) -> None:
    """Replaces the line. Does nothing in a run without a supervisor, or on another node than the supervisor's."""
    folder = os.environ.get("GTPO_VERL_TMP")
    if folder is None:
        return
    with suppress(OSError):
        partial = Path(folder, f"{_FILE}.{os.getpid()}")
        partial.write_text(stage, encoding="utf-8")
        partial.replace(Path(folder, _FILE))


def read(folder: Path) -> str | None:
    """The line; None where nothing was said yet."""
    with suppress(OSError):
        return (folder / _FILE).read_text(encoding="utf-8")
    return None
