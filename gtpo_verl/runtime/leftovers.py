"""Folders of supervised runs, and who owns them: a run's folder holds a file that its supervisor has locked.

The lock goes with the process, however it ends, and is seen in every container that shares the folder. What a
supervisor killed by force has left (processes, shared memory, the folder) is found by it and removed by the next one.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from gtpo_verl.runtime.shared_memory import remove_segments

PREFIX = "gtpo-"
_LOCK = "supervisor"


@contextmanager
def owned_folder(base: Path) -> Iterator[Path]:
    """A new folder under `base` that is this process's while the block runs; the block removes it.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    # Locked before it has its name: whoever looks in between sees a folder of nobody, and leaves it alone.
    unnamed = folder / f"{_LOCK}.part"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(folder / _LOCK)
        yield folder
    finally:
        os.close(descriptor)


def remove_dead(base: Path, end: Callable[[Sequence[psutil.Process]], None]) -> list[Path]:
    """Removes what dead supervisors of this user left under `base`; returns their folders.

    Args:
        end: ends processes, those that such a run has left.
    """
    removed = []
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: its supervisor lives
                end(_processes_of(folder))
                remove_segments(folder)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
            finally:
                os.close(descriptor)
    return removed


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Processes of this user that were started for the run of this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and process.environ().get("GTPO_VERL_TMP") == str(folder):
                found.append(process)
    return found
