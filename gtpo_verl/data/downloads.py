"""Downloads over HTTP that go on where an earlier attempt, also of a process that was killed, left off.

huggingface_hub resumes within one call only: as of its version 1.33 a partial file has a random name, and is deleted
when the call fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gtpo_verl.data.errors import DownloadError

_CHUNK = 1 << 20
_TIMEOUT_S = 30.0
_FRUITLESS_ATTEMPTS = 3
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    Attributes:
        url: its address; redirects are followed.
        size: bytes, or None if the server does not say.
        version: changes with the content (an ETag or a date); without one, a download always starts anew.
        digest: SHA-256 of the content, or the SHA-1 that git gives it, in hex; anything else is not compared.
        headers: sent along, but not to another host that a redirect names.
    """

    url: str
    size: int | None = None
    version: str | None = None
    digest: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.rsplit("/", 1)[-1]


def look_up(url: str) -> RemoteFile:
    """Asks a server about a file.

    Raises:
        DownloadError: the server cannot be reached, or has no such file.
    """
    try:
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client:
            response = client.head(url, headers={"Accept-Encoding": "identity"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DownloadError(f"{url}: cannot be reached ({type(error).__name__}: {error})") from error
    if response.status_code in (405, 501):
        return RemoteFile(url)
    if response.status_code >= 400:
        raise DownloadError(f"{url}: the server answers {response.status_code}")
    length = response.headers.get("Content-Length", "")
    return RemoteFile(
        url,
        size=int(length) if length.isdecimal() else None,
        version=response.headers.get("ETag") or response.headers.get("Last-Modified"),
    )


def download(remote: RemoteFile, cache_dir: Path) -> Path:
    """Returns the file, from the cache if the same version has been downloaded before.

    What arrives is kept as ``<name>.part`` until it is complete and its size and digest are right.

    Raises:
        DownloadError: the server refuses, keeps breaking off without sending anything, or sends something else than
            it announced; or another process is downloading the same file.
    """
    identity = f"{remote.url}\n{remote.version}"
    folder = cache_dir / "downloads" / hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    final, part = folder / remote.name, folder / f"{remote.name}.part"
    if remote.version is not None and final.is_file() and _is_announced(remote, final):
        return final
    folder.mkdir(parents=True, exist_ok=True)
    with part.open("ab") as handle:
        try:
            # The kernel drops the lock with the process, so that a killed download blocks nobody.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DownloadError(f"{part}: another process is downloading {remote.url}") from error
        if remote.size is not None and handle.tell() > remote.size:
            _restart(handle)
        _complete(remote, handle)
        handle.flush()
        os.fsync(handle.fileno())
        if not _is_announced(remote, part):
            part.unlink()
            raise DownloadError(f"{remote.url}: what was sent has not the digest that was announced; it is deleted")
        os.replace(part, final)
    return final


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    return _digest(path, hashlib.sha256())


def _complete(remote: RemoteFile, handle: BinaryIO) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(remote.name, total=remote.size, completed=handle.tell())
        fruitless = 0
        while True:
            before = handle.tell()
            reason = _receive(remote, handle, lambda done: progress.update(task, completed=done))
            if reason is None:
                return
            fruitless = 0 if handle.tell() > before else fruitless + 1
            if fruitless == _FRUITLESS_ATTEMPTS:
                total = "" if remote.size is None else f" of {remote.size:,}"
                kept = "are kept, the same command goes on there" if remote.version else "arrived"
                raise DownloadError(f"{remote.url}: {reason}; {handle.tell():,}{total} bytes {kept}")
            time.sleep(fruitless)


def _receive(remote: RemoteFile, handle: BinaryIO, show: Callable[[int], None]) -> str | None:
    """Appends what is missing; returns why it broke off, or None when the file is complete.

    Raises:
        DownloadError: the server refuses.
    """
    if remote.version is None:
        _restart(handle)  # what was there may be of another version
    start = handle.tell()
    if start and start == remote.size:
        return None
    headers = {**remote.headers, "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with (
            httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client,
            client.stream("GET", remote.url, headers=headers) as response,
        ):
            if response.status_code in _TRANSIENT:
                return f"the server answers {response.status_code}"
            if response.status_code == 416 or (response.status_code == 206 and not _begins_at(response, start)):
                _restart(handle)
                return f"the server has no bytes from {start:,} on"
            if response.status_code not in (200, 206):
                raise DownloadError(f"{remote.url}: the server answers {response.status_code}")
            if response.status_code == 200:
                _restart(handle)
            # Not in chunks of a fixed size: httpx would keep back what does not fill one when the connection breaks.
            for chunk in response.iter_raw():
                handle.write(chunk)
                show(handle.tell())
    except httpx.InvalidURL as error:
        raise DownloadError(f"{remote.url}: {error}") from error
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if remote.size is not None and handle.tell() != remote.size:
        if handle.tell() > remote.size:
            _restart(handle)
        return "the server sent another number of bytes than it announced"
    return None


def _restart(handle: BinaryIO) -> None:
    handle.seek(0)
    handle.truncate()


def _begins_at(response: httpx.Response, start: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _is_announced(remote: RemoteFile, path: Path) -> bool:
    if remote.size is not None and path.stat().st_size != remote.size:
        return False
    announced = remote.digest or ""
    if re.fullmatch(r"[0-9a-f]{64}", announced):
        return file_sha256(path) == announced
    if re.fullmatch(r"[0-9a-f]{40}", announced):
        return _digest(path, hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)) == announced
    return True


def _digest(path: Path, state: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
