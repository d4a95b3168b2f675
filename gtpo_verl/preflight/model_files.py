"""Whether a Hugging Face model folder is whole: its index against its shards, each shard against its own header."""

import json
import struct
from pathlib import Path

_INDEX = "model.safetensors.index.json"


def model_problems(folder: Path) -> list[str]:
    """What is missing or cut off, each with the file's name; empty for a whole model.

    Reads headers only: a few MB even of a large model.
    """
    if not folder.is_dir():
        return [f"{folder}: no such folder"]
    problems = []
    if (error := _json_problem(folder / "config.json")) is not None:
        problems.append(error)
    index = folder / _INDEX
    if index.exists():
        if (error := _json_problem(index)) is not None:
            return [*problems, error]
        shards = _shards(index)
        if shards is None:
            return [*problems, f"{index}: no weight_map"]
    else:
        shards = {file.name: None for file in sorted(folder.glob("*.safetensors"))}
        if not shards:
            if not any(folder.glob("pytorch_model*.bin")):
                problems.append(f"{folder}: no weights (*.safetensors, {_INDEX} or pytorch_model*.bin)")
            return problems
    for name, tensors in shards.items():
        problem = shard_problem(folder / name, tensors)
        if problem is not None:
            problems.append(problem)
    return problems


def shard_problem(path: Path, tensors: set[str] | None = None) -> str | None:
    """What is wrong with one safetensors file: absent, cut off, too long, or without a tensor the index places there.

    A file is 8 bytes with the header's length (little-endian), the header (JSON), then the tensors' bytes.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                return f"{path}: cut off after {size} bytes"
            (length,) = struct.unpack("<Q", start)
            if 8 + length > size:
                return f"{path}: {size} bytes, less than its header, or no safetensors file"
            header = json.loads(file.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            expected = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except FileNotFoundError:
        return f"{path}: missing"
    except OSError as error:
        return f"{path}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return f"{path}: the header is not that of a safetensors file"
    if size != expected:
        return f"{path}: {size} bytes, its header promises {expected}"
    missing = sorted((tensors or set()) - set(entries))
    if missing:
        return f"{path}: lacks {len(missing)} tensors of the index, the first is {missing[0]}"
    return None


def _shards(index: Path) -> dict[str, set[str] | None] | None:
    content = json.loads(index.read_text(encoding="utf-8"))
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        return None
    shards: dict[str, set[str] | None] = {}
    for tensor, name in weight_map.items():
        members = shards.setdefault(name, set())
        assert members is not None
        members.add(tensor)
    return shards


def _json_problem(path: Path) -> str | None:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path}: missing"
    except (OSError, ValueError) as error:
        return f"{path}: not readable as JSON ({error})"
    return None
