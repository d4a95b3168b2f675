"""Shared memory that can be found again: segments and semaphores of a supervised run carry the run's name.

Python names them `psm_<random>` and `sem.mp-<random>`; those whose creator was killed stay in /dev/shm for ever, and
nothing tells whose they were. Every process of a run that loads our plugin (verl's or vLLM's) calls `name_after_run`.
"""

import os
from multiprocessing import current_process, shared_memory
from pathlib import Path

_FOLDER = Path("/dev/shm")


def name_after_run() -> None:
    """Makes this process name what it creates in /dev/shm after the run; does nothing outside a supervised run.

    Sets two private names of CPython's multiprocessing, the same in 3.10, 3.11 and 3.12: `_SHM_NAME_PREFIX` of
    `shared_memory`, and `semprefix`, which processes started from this one inherit.
    """
    temporary = os.environ.get("GTPO_VERL_TMP")
    if temporary is not None:
        prefix = f"/{_prefix(Path(temporary))}"
        shared_memory._SHM_NAME_PREFIX = prefix  # type: ignore[attr-defined]
        current_process()._config["semprefix"] = prefix  # type: ignore[attr-defined]


def remove_segments(temporary: Path) -> None:
    """Removes what the run with this temporary folder left in /dev/shm."""
    for kind in ("", "sem."):
        for entry in _FOLDER.glob(f"{kind}{_prefix(temporary)}*"):
            entry.unlink(missing_ok=True)


def _prefix(temporary: Path) -> str:
    # CPython takes names of at most 14 characters, its own random part of 4 and the slash included.
    return f"g{temporary.name[-8:]}"
