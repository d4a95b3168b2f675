"""Whether a checkpoint is whole: every file that a resume or a conversion reads, looked at without loading it.

What PyTorch saves is a zip file: its directory is its end, which a file that was cut off lacks. Each record must lie
where the directory says, and small ones (all but the tensors of a large model) must have their checksum. Nothing is
unpickled.
"""

import json
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

# What verl calls what it saves and loads (`actor.checkpoint.load_contents`), and the files of a rank that hold it.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
RANKS_FILE = "fsdp_config.json"
_CHECKED_BYTES = 1 << 20  # of a record whose checksum is compared; a larger one is looked for in its place alone
_HEADER = 30  # bytes of a zip record's header before its name (APPNOTE 4.3.7)
_DESCRIPTIONS = ("config.json", "tokenizer_config.json")
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")


def checkpoint_problem(folder: Path, shards: Sequence[str] | None) -> str | None:
    """What a run could not go on from, by the file's name; None for a whole checkpoint.

    Args:
        folder: `global_step_N`.
        shards: keys of SHARDS that will be read; None: not known, as of other strategies than FSDP.
    """
    roles = [path for path in (folder / "actor", folder / "critic") if path.is_dir()]
    if folder / "actor" not in roles:
        return f"{folder / 'actor'}: no such folder"
    for role in roles:
        if (problem := actor_problem(role, shards)) is not None:
            return problem
    return archive_problem(folder / "data.pt")


def actor_problem(actor: Path, shards: Sequence[str] | None) -> str | None:
    """As `checkpoint_problem`, of `actor` or `critic` alone."""
    if shards is None and not any(actor.glob("*_world_size_*_rank_*.pt")) and not (actor / RANKS_FILE).exists():
        return None
    try:
        ranks = ranks_of(actor)
    except (ValueError, OSError) as error:
        return str(error)
    for kind in SHARDS if shards is None else shards:
        name = f"{SHARDS[kind]}_world_size_{ranks}_rank_"
        if shards is None and not any(actor.glob(f"{name}*.pt")):
            continue
        for rank in range(ranks):
            if (problem := archive_problem(actor / f"{name}{rank}.pt")) is not None:
                return problem
    described = actor / "huggingface"
    for path in (
        *(described / name for name in _DESCRIPTIONS),
        *sorted(described.glob("*.json")),
        *actor.glob("*.json"),
    ):
        if (problem := json_problem(path)) is not None:
            return problem
    for path in sorted(described.iterdir()):  # a vocabulary, merges, a template in Jinja
        if path.is_file() and path.stat().st_size == 0:
            return f"{path}: an empty file"
    if not any(file for pattern in _VOCABULARIES for file in described.glob(pattern)):
        return f"{described}: no such file there as the tokenizer's vocabulary ({', '.join(_VOCABULARIES)})"
    return None


def ranks_of(actor: Path) -> int:
    """How many FSDP ranks saved this actor.

    Raises:
        FileNotFoundError, ValueError: the file that says so is missing or damaged.
    """
    path = actor / RANKS_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        ranks = int(json.loads(path.read_bytes())["world_size"])
        if ranks < 1:
            raise ValueError(f"{ranks} ranks")
        return ranks
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no `world_size` to be read: {error}") from error


def archive_problem(path: Path) -> str | None:
    """What is wrong with a file that PyTorch saved: missing, empty, cut off, or changed since."""
    try:
        stat = path.stat()
    except OSError as error:
        return f"{path}: no such file" if isinstance(error, FileNotFoundError) else f"{path}: {error.strerror}"
    return _archive_problem(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _archive_problem(path: Path, size: int, _changed: int) -> str | None:
    if size == 0:
        return f"{path}: an empty file"
    try:
        with zipfile.ZipFile(path) as archive:
            for record in archive.infolist():
                if record.file_size <= _CHECKED_BYTES:
                    archive.read(record)
                elif record.header_offset + _HEADER + len(record.filename) + record.compress_size > size:
                    return f"{path}: cut off within {record.filename}"
    # zipfile's word for a compression that it does not know, which a damaged byte may name, is NotImplementedError.
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, OSError) as error:
        return f"{path}: not whole, as if its writing had been cut off ({error})"
    return None


def json_problem(path: Path) -> str | None:
    """What is wrong with a JSON file: missing, empty, cut off, no UTF-8."""
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return f"{path}: no such file"
    except (OSError, ValueError, RecursionError) as error:
        return f"{path}: not readable as JSON ({error})"
    return None
