"""Shared memory that can be found again: segments and semaphores of a supervised run carry the run's name.

Python names them `psm_<random>` and `sem.mp-<random>`; those whose creator was killed stay in /dev/shm for ever, and
nothing tells whose they were. Every process of a run that loads our plugin (verl's or vLLM's) calls `name_after_run`.
"""

import functools
import os
from contextlib import suppress
from multiprocessing import current_process, shared_memory
from pathlib import Path

_FOLDER = Path("/dev/shm")
_NAMES = "segments"


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
        _note_given_names(Path(temporary, _NAMES))


def _note_given_names(folder: Path) -> None:
    """A segment whose creator names it is noted in the run's folder, as an empty file of that name: verl hands weights
    to vLLM in `verl_weights_<random>` (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py).
    """
    create = shared_memory.SharedMemory.__init__
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def noted(self: shared_memory.SharedMemory, name: str | None = None, create_: bool = False, *args, **given) -> None:
        if name and given.get("create", create_):
            with suppress(OSError):  # on another node, which has no such folder
                folder.mkdir(exist_ok=True)
                (folder / name.lstrip("/")).touch()
        create(self, name, given.pop("create", create_), *args, **given)

    shared_memory.SharedMemory.__init__ = noted  # type: ignore[method-assign, assignment]


def remove_segments(temporary: Path) -> None:
    """Removes what the run with this temporary folder left in /dev/shm."""
    for kind in ("", "sem."):
        for entry in _FOLDER.glob(f"{kind}{_prefix(temporary)}*"):
            entry.unlink(missing_ok=True)
    with suppress(OSError):
        for noted in (temporary / _NAMES).iterdir():
            (_FOLDER / noted.name).unlink(missing_ok=True)


def _prefix(temporary: Path) -> str:
    # CPython takes names of at most 14 characters, its own random part of 4 and the slash included.
    return f"g{temporary.name[-8:]}"
