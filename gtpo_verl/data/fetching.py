"""Where the file of a data set comes from: the hub, a mirror of it, a URL, or this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gtpo_verl.data.downloads import TRANSIENT, RemoteFile, download, file_sha256, look_up, public_url
from gtpo_verl.data.errors import DownloadError, first_line
from gtpo_verl.data.sources import Source
from gtpo_verl.tasks.data_files import DataFileError

SUFFIXES = (".parquet", ".jsonl", ".json")


@dataclass(frozen=True)
class SourceFile:
    """A file of this machine and where it came from.

    Attributes:
        path: the file.
        origin: path, or URL without what may be secret in it.
        revision: what was asked of the hub; None for a file from elsewhere.
        commit: the hub's commit, 40 hex digits; None where unknown.
        sha256: of the content, in hex.
    """

    path: Path
    origin: str
    revision: str | None
    commit: str | None
    sha256: str


def fetch(source: Source, place: str | None, revision: str, cache_dir: Path) -> SourceFile:
    """Returns the file of a data set, downloading it if need be.

    Args:
        source: which data set.
        place: None for the hub (``HF_ENDPOINT`` and ``HF_TOKEN`` count), the address of a mirror with the hub's layout,
            the URL of the file itself, a file, or a folder with it.
        revision: of the hub's repository; ignored for a file from elsewhere.
        cache_dir: where downloads are kept.

    Raises:
        DataFileError: there is no such file on this machine.
        DownloadError: it cannot be downloaded; what arrived is kept for the next attempt.
    """
    if place is None or comes_from_hub(place):
        return _from_hub(source, place, revision, cache_dir)
    if _is_url(place):
        path = download(look_up(place), cache_dir)
        return SourceFile(path, public_url(place), None, None, file_sha256(path))
    path = _local(source, Path(place))
    return SourceFile(path, str(path), None, None, file_sha256(path))


def is_place(text: str) -> bool:
    """Whether a text can be a place at all; an unset variable of a shell script cannot."""
    try:
        return bool(text.strip() and (not _is_url(text) or urlsplit(text).hostname))
    except ValueError:
        return False


def comes_from_hub(place: str | None) -> bool:
    """Whether a place is the hub or a mirror of it, rather than a file or a folder."""
    return place is None or (_is_url(place) and not _names_a_file(place))


def names_one_file(place: str) -> bool:
    """Whether a place holds a single file, so that it cannot serve several data sets."""
    return _names_a_file(place) if _is_url(place) else Path(place).is_file()


def _is_url(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _names_a_file(url: str) -> bool:
    return urlsplit(url).path.endswith(SUFFIXES)


def _local(source: Source, place: Path) -> Path:
    if not place.is_dir():
        if not place.is_file():
            raise DataFileError(f"{place}: no such file or folder")
        return place
    names = [
        source.file_name,
        source.file,
        f"{source.repository}/{source.file}",
        *(source.name + suffix for suffix in SUFFIXES),
    ]
    found = next((place / name for name in names if (place / name).is_file()), None)
    if found is None:
        raise DataFileError(f"{place}: holds no file of {source.name}; looked for {', '.join(dict.fromkeys(names))}")
    return found


def _from_hub(source: Source, endpoint: str | None, revision: str, cache_dir: Path) -> SourceFile:
    # Read when the library is imported. It would ask the hub for a list that only its statistics need, and keep it in
    # the user's home, also where a mirror is named because the hub cannot be reached.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    where = f"{source.repository}@{revision}: {source.file}"
    url = hf_hub_url(
        source.repository,
        source.file,
        repo_type="dataset",
        revision=revision,
        endpoint=endpoint.rstrip("/") if endpoint else None,
    )
    # The token belongs to the hub and to what HF_ENDPOINT names, not to any address on the command line.
    token = None if endpoint is None else False
    shown = public_url(url)
    try:
        metadata = get_hf_file_metadata(url, token=token)
    except Exception as error:  # the library raises its own, httpx's and the operating system's errors
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is not None and 400 <= status < 500 and status not in TRANSIENT:
            raise DownloadError(f"{where}: {shown} answers {status} ({type(error).__name__})") from error
        cached = _cached(source, revision) if endpoint is None else None
        if cached is None:
            reason = f"{type(error).__name__}: {first_line(error)}".replace(url, shown)
            raise DownloadError(
                f"{where}: {shown} cannot be reached ({reason}); --from takes a mirror, a file or a folder"
            ) from error
        return SourceFile(cached, shown, revision, _commit_of(cached), file_sha256(cached))

    commit = metadata.commit_hash
    headers = {name: value for name, value in build_hf_headers(token=token).items() if name.lower() == "authorization"}
    remote = RemoteFile(url, metadata.size, metadata.etag, digest=metadata.etag, headers=headers)
    # What another program has downloaded already. Without a commit the cache may hold another version.
    path = _cached(source, commit) if endpoint is None and commit else None
    if path is None or not remote.is_in(path):
        path = download(remote, cache_dir)
    return SourceFile(path, shown, revision, commit, file_sha256(path))


def _cached(source: Source, revision: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source.repository, source.file, revision=revision, repo_type="dataset")
    return Path(cached) if isinstance(cached, str) else None


def _commit_of(cached: Path) -> str | None:
    parts = cached.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
