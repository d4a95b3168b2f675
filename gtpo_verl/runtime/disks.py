"""Full file systems: an error that cannot be written is lost, so whoever has a terminal looks by itself."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_FULL = 1 << 20  # bytes; what a write of a whole checkpoint leaves that did not fit


def full(folders: Iterable[str | Path]) -> list[str]:
    """Those of the folders on whose file system (of the nearest folder that exists) this process can write no more."""
    found = []
    for folder in dict.fromkeys(map(str, folders)):
        path = Path(folder)
        with suppress(OSError):
            existing = next(parent for parent in (path, *path.parents) if parent.exists())
            disk = os.statvfs(existing)
            free = disk.f_frsize * (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail)
            if free < _FULL or (disk.f_files and not disk.f_ffree):
                found.append(folder)
    return found


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which need not exist yet; None where it can. The system is asked by a
    file without a name: root is told that it may write where nobody can."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"nothing can be written into {existing}: {error.strerror}"
