"""Folders built once and found again: named by a hash of what they depend on, complete or absent."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, Any


def content_key(parts: dict[str, Any], modules: Sequence[ModuleType], packages: Sequence[str]) -> str:
    """Return 16 hex digits that change with the values, the source of the modules or the versions of the packages.

    Dataclasses among the values count by their fields.
    """
    described = {
        "parts": parts,
        "sources": [Path(str(module.__file__)).read_text(encoding="utf-8") for module in modules],
        "packages": {package: metadata.version(package) for package in packages},
    }
    text = json.dumps(described, sort_keys=True, default=dataclasses.asdict)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def build_once(cache_dir: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return ``cache_dir/name``, calling ``build(folder)`` to fill it if it does not exist.

    The folder appears by a rename once ``build`` has returned, so whoever finds it finds it whole. Concurrent callers
    wait for the first; what a killed one left behind is removed by the next.
    """
    final = cache_dir / name
    if final.is_dir():
        return final
    cache_dir.mkdir(parents=True, exist_ok=True)
    with exclusive(cache_dir / f".{name}.lock"):
        if final.is_dir():
            return final
        for leftover in cache_dir.glob(f".{name}.tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.tmp-", dir=cache_dir))
        try:
            build(scratch)
            scratch.chmod(0o755)  # mkdtemp keeps others out; a shared cache need not
            os.rename(scratch, final)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return final


@contextlib.contextmanager
def exclusive(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds a lock that one process at a time holds, and the next as soon as this one has ended, however it ended.

    Args:
        path: a file for the lock, in a folder that exists; it is gone afterwards.
        waiting: called once if another process holds the lock.
    """
    while True:
        with path.open("a", encoding="utf-8") as handle:
            try:
                # The kernel drops the lock with the process, so that a killed run blocks nobody.
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
            # Whoever held the lock has removed this file; the next process makes and locks another.
            if not _is_at(path, handle):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(path: Path, handle: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle.fileno()))
    except FileNotFoundError:
        return False
