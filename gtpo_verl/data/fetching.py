"""Where the file of a data set comes from: the hub, a mirror of it, a URL, or this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gtpo_verl.data.downloads import RemoteFile, download, file_sha256, look_up
from gtpo_verl.data.errors import DownloadError, first_line
from gtpo_verl.data.sources import Source
from gtpo_verl.tasks.data_files import DataFileError

SUFFIXES = (".parquet", ".jsonl", ".json")


@dataclass(frozen=True)
class SourceFile:
    """A file of this machine and where it came from.

    Attributes:
        path: the file.
        origin: URL or path.
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
    if place is None or (_is_url(place) and not _names_a_file(place)):
        return _from_hub(source, place, revision, cache_dir)
    if _is_url(place):
        path = download(look_up(place), cache_dir)
        return SourceFile(path, place, None, None, file_sha256(path))
    path = _local(source, Path(place))
    return SourceFile(path, str(path), None, None, file_sha256(path))


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
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
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
    metadata = None
    failure = ""
    try:
        metadata = get_hf_file_metadata(url, token=token)
    except Exception as error:  # the library raises its own, httpx's and the operating system's errors
        response = getattr(error, "response", None)
        if response is not None and 400 <= response.status_code < 500:
            raise DownloadError(f"{where}: {url} answers {response.status_code} ({type(error).__name__})") from error
        failure = f"{type(error).__name__}: {first_line(error)}"

    commit = metadata.commit_hash if metadata else None
    # What another program has downloaded already, found also without a network.
    cached = try_to_load_from_cache(source.repository, source.file, revision=commit or revision, repo_type="dataset")
    if isinstance(cached, str):
        return SourceFile(Path(cached), url, revision, commit or _commit_of(cached), file_sha256(Path(cached)))
    if metadata is None:
        raise DownloadError(f"{where}: {url} cannot be reached ({failure}); --from takes a mirror, a file or a folder")

    headers = {name: value for name, value in build_hf_headers(token=token).items() if name.lower() == "authorization"}
    remote = RemoteFile(url, metadata.size, metadata.etag, digest=metadata.etag, headers=headers)
    path = download(remote, cache_dir)
    return SourceFile(path, url, revision, commit, file_sha256(path))


def _commit_of(cached: str) -> str | None:
    parts = Path(cached).parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts else None
