"""Downloads over HTTP that go on where an earlier attempt, also of a process that was killed, left off.

huggingface_hub resumes within one call only: as of its version 1.33 a partial file has a random name, and is deleted
when the call fails.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from gtpo_verl.data.errors import DownloadError, first_line
from gtpo_verl.tasks.cache import exclusive

_CHUNK = 1 << 20
_TIMEOUT_S = 30.0
_FRUITLESS_ATTEMPTS = 3
# Answers that say nothing about the file.
TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    Attributes:
        url: its address; redirects are followed.
        size: bytes, or None if the server does not say.
        version: changes with the content (an ETag without its quotes, or a date); without one, a download always starts
            anew.
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

    @property
    def has_digest(self) -> bool:
        return _DIGEST.fullmatch(self.digest or "") is not None

    def is_in(self, path: Path) -> bool:
        """Whether a file has the size and the digest, as far as they are known."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return False
        if not self.has_digest:
            return True
        git = len(str(self.digest)) == 40
        state = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if git else hashlib.sha256()
        return _digest(path, state) == self.digest


def public_url(url: str) -> str:
    """Returns a URL without its user, password and query, any of which may be a secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def look_up(url: str) -> RemoteFile:
    """Asks a server about a file.

    Raises:
        DownloadError: the server cannot be reached, or has no such file.
    """
    try:
        with httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client:
            response = client.head(url, headers={"Accept-Encoding": "identity"})
    # httpx raises the last two about proxies that the environment names.
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise DownloadError(f"{public_url(url)}: cannot be reached ({reason})") from error
    if response.status_code in (403, 405, 501):
        return RemoteFile(url)  # not everyone who sends a file answers questions about it
    if response.status_code >= 400:
        raise DownloadError(f"{public_url(url)}: the server answers {response.status_code}")
    length = response.headers.get("Content-Length", "")
    etag = response.headers.get("ETag", "")
    # A weak ETag promises the same meaning, not the same bytes.
    strong = "" if etag.startswith("W/") else _unquoted(etag)
    return RemoteFile(
        url,
        size=int(length) if length.isdecimal() else None,
        version=strong or response.headers.get("Last-Modified"),
    )


def download(remote: RemoteFile, cache_dir: Path) -> Path:
    """Returns the file, from the cache if the same version has been downloaded before.

    What arrives is kept as ``<name>.part`` until it is complete and its size and digest are right. Of several processes
    one downloads, and the others wait for it.

    Raises:
        DownloadError: the server refuses, keeps breaking off without sending anything, or sends something else than
            it announced; or the cache cannot be written.
    """
    identity = f"{remote.url}\n{remote.version}"
    folder = cache_dir / "downloads" / hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
    final, part = folder / remote.name, folder / f"{remote.name}.part"

    def is_cached() -> bool:
        return remote.version is not None and final.is_file() and remote.is_in(final)

    def say_so() -> None:
        print(f"waiting for another process that downloads {public_url(remote.url)}", file=sys.stderr)

    if is_cached():
        return final
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / f"{remote.name}.lock", say_so):
            if not is_cached():
                _fill(remote, part)
                os.replace(part, final)
    except OSError as error:
        raise DownloadError(f"{folder}: cannot be written ({error.strerror or error}); what arrived is kept") from error
    return final


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hex."""
    return _digest(path, hashlib.sha256())


def _fill(remote: RemoteFile, part: Path) -> None:
    try:
        with part.open("ab") as handle:
            if remote.size is not None and handle.tell() > remote.size:
                _restart(handle)
            _complete(remote, handle)
            handle.flush()
            os.fsync(handle.fileno())
        if not remote.is_in(part):
            os.truncate(part, 0)
            raise DownloadError(
                f"{public_url(remote.url)}: what was sent has not the digest that was announced; it is deleted"
            )
    finally:
        if part.is_file() and part.stat().st_size == 0:
            part.unlink()


def _complete(remote: RemoteFile, handle: BinaryIO) -> None:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as progress:
        task = progress.add_task(remote.name, total=remote.size, completed=handle.tell())
        fruitless = 0
        most = handle.tell()
        while True:
            reason = _receive(remote, handle, lambda done: progress.update(task, completed=done))
            if reason is None:
                return
            # More than ever before: a server that starts anew each time may get further than it did the last time.
            fruitless = 0 if handle.tell() > most else fruitless + 1
            most = max(most, handle.tell())
            if fruitless == _FRUITLESS_ATTEMPTS:
                total = "" if remote.size is None else f" of {remote.size:,}"
                kept = "are kept, the same command goes on there" if remote.version else "arrived"
                raise DownloadError(f"{public_url(remote.url)}: {reason}; {handle.tell():,}{total} bytes {kept}")
            time.sleep(fruitless)


def _receive(remote: RemoteFile, handle: BinaryIO, show: Callable[[int], None]) -> str | None:
    """Appends what is missing; returns why it broke off, or None when the file is complete.

    Raises:
        DownloadError: the server refuses, or sends something else.
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
            if response.status_code in TRANSIENT:
                return f"the server answers {response.status_code}"
            if response.status_code == 416 or (response.status_code == 206 and not _begins_at(response, start)):
                _restart(handle)
                return f"the server has no bytes from {start:,} on"
            if response.status_code not in (200, 206):
                raise DownloadError(f"{public_url(remote.url)}: the server answers {response.status_code}")
            difference = _difference(remote, response)
            if difference:
                raise DownloadError(f"{public_url(remote.url)}: {difference}")
            if response.status_code == 200:
                _restart(handle)
            # Not in chunks of a fixed size: httpx would keep back what does not fill one when the connection breaks.
            for chunk in response.iter_raw():
                handle.write(chunk)
                show(handle.tell())
    except httpx.InvalidURL as error:
        raise DownloadError(f"{public_url(remote.url)}: {error}") from error
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {first_line(error)}"
    if remote.size is not None and handle.tell() != remote.size:
        # The connection did not break: whatever this was, it was not the file.
        _restart(handle)
        return "the server sent another number of bytes than it announced"
    return None


def _difference(remote: RemoteFile, response: httpx.Response) -> str | None:
    """Returns in what an answer is not the file that was looked up, before anything of it is kept."""
    if response.headers.get("Content-Type", "").startswith("text/html"):
        return "the server sends a web page instead of the file"
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        return f"the server sends it compressed ({encoding}), which was not asked for"
    # The hub's digest is compared in the end. Without one nothing else would tell two versions apart.
    if remote.version is not None and not remote.has_digest and remote.version not in _versions(response):
        return "the file is not the one that was looked up a moment ago; the same command begins anew"
    if response.status_code == 206:
        total = response.headers["Content-Range"].rpartition("/")[2]
    else:
        total = response.headers.get("Content-Length", "")
    if remote.size is not None and total.isdecimal() and int(total) != remote.size:
        return f"the server sends a file of {int(total):,} bytes; it announced {remote.size:,}"
    return None


def _versions(response: httpx.Response) -> set[str]:
    """What an answer and the redirects to it say about the version."""
    names = ("X-Linked-ETag", "ETag", "Last-Modified")
    hops = (*response.history, response)
    return {_unquoted(hop.headers[name]) for hop in hops for name in names if name in hop.headers}


def _unquoted(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _restart(handle: BinaryIO) -> None:
    handle.seek(0)
    handle.truncate()


def _begins_at(response: httpx.Response, start: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _digest(path: Path, state: hashlib._Hash) -> str:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()
