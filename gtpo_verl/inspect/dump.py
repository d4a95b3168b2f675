"""Steps on disk: one parquet file each, `step_<n>.parquet`, a response a row; bounded, and whole or not there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from gtpo_verl.inspect.responses import (
    ADVANTAGES,
    ENTROPY,
    LOG_PROB,
    ROLLOUT_LOG_PROB,
    SHAPED,
    InspectError,
    Response,
    Step,
)
from gtpo_verl.runtime.whole_file import PART, whole_file

VALUES = (ADVANTAGES, SHAPED, ENTROPY, LOG_PROB, ROLLOUT_LOG_PROB)
# Where a run's dumps are looked for, in its folder, before its configuration is asked.
FOLDER = "tokens"
CONFIG_FILE = "config.yaml"

_NAME = re.compile(r"step_(\d+)\.parquet")
_KEY = b"gtpo_verl"


def steps(folder: Path) -> dict[int, Path]:
    """Return the files of a folder by their steps, ascending."""
    found = {int(match[1]): path for path in folder.glob("step_*.parquet") if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def write(step: Step, folder: Path, max_bytes: float) -> Path:
    """Write a step, then delete the oldest files until all together are no larger than `max_bytes`.

    The file appears when it is whole. The one just written stays, however large it is.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step.step}.parquet"
    with whole_file(path) as part:
        pyarrow.parquet.write_table(_table(step), part, compression="zstd", write_page_checksum=True)
    _keep_newest(folder, path, max_bytes)
    return path


def forget_after(folder: Path, step: int) -> None:
    """Delete the files of later steps, which the run that goes on from `step` takes again, and what a crash left."""
    for other, path in steps(folder).items():
        if other > step:
            path.unlink(missing_ok=True)
    for part in folder.glob(f"step_*{PART}"):
        part.unlink(missing_ok=True)


def find(run: Path) -> Path:
    """Return the folder of a run's dumps: `tokens` in the run's folder, the one of its configuration, or `run` itself.

    Raises:
        InspectError: there is no such run, it is a file, or it has no dump; says which keys to set.
    """
    if not run.exists():
        raise InspectError(f"{run}: no such run folder")
    if not run.is_dir():
        raise InspectError(f"{run}: is a file; name the run's folder, or the folder of its dumps")
    for folder in (run, run / FOLDER, *_configured(run)):
        if steps(folder):
            return folder
    raise InspectError(
        f"{run}: no tokens were dumped. Train with gtpo_verl.token_dump_freq=1 (steps between two dumps); "
        "gtpo_verl.token_dump_groups, token_dump_max_gib and token_dump_dir say how much, and where"
    )


def read(path: Path) -> Step:
    """Read a step.

    Raises:
        InspectError: the file is damaged or no dump of tokens; names it.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        about = json.loads((table.schema.metadata or {})[_KEY], parse_constant=_refuse)
        return _step(_columns(table), about)
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise InspectError(f"{path}: cannot be read as a dump of tokens: {error!r}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} in its metadata")


def _configured(run: Path) -> list[Path]:
    import yaml

    try:
        config = yaml.load((run / CONFIG_FILE).read_text("utf-8"), yaml.CSafeLoader)
        return [Path(config["gtpo_verl"]["token_dump_dir"])]
    except (OSError, yaml.YAMLError, KeyError, TypeError, UnicodeDecodeError):
        return []


def _keep_newest(folder: Path, newest: Path, max_bytes: float) -> None:
    sizes = {path: path.stat().st_size for path in steps(folder).values()}
    total = sum(sizes.values())
    for path, size in sizes.items():
        if total <= max_bytes:
            return
        if path != newest:
            path.unlink(missing_ok=True)
            total -= size


def _schema() -> dict[str, Any]:
    """The columns of a dump and their types; those of tokens are lists."""
    import pyarrow as pa

    of_rows = {"uid": pa.string(), "prompt": pa.string(), "right": pa.bool_(), "score": pa.float64()}
    of_rows |= {"length_penalty": pa.float64(), "reward": pa.string()}
    of_tokens = {"prompts": pa.int32(), "responses": pa.int32(), "pieces": pa.string(), "response_mask": pa.bool_()}
    of_tokens |= {name: pa.float32() for name in VALUES}
    return {**of_rows, **{name: pa.large_list(of) for name, of in of_tokens.items()}}


def _columns(table: Any) -> dict[str, Any]:
    """The columns of a table, each whole and of its type.

    Raises:
        ValueError, pyarrow.ArrowException: one is missing, of another type, with gaps, not finite, or of other lengths
            than the tokens; mostly names it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = {}
    for name, type_ in _schema().items():
        if name not in table.column_names:
            if name in VALUES:
                continue
            raise ValueError(f"no column {name}")
        column = table[name].combine_chunks().cast(type_)
        values = column.flatten() if pa.types.is_large_list(type_) else column
        if (column.null_count or values.null_count) and name != "length_penalty":
            raise ValueError(f"{name} has gaps")
        if type_ == pa.float64() and pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise ValueError(f"{name} is not finite")
        columns[name] = column
    for name in ("response_mask", *VALUES):
        if name in columns and columns[name].value_lengths() != columns["pieces"].value_lengths():
            raise ValueError(f"{name} has rows of other lengths than pieces")
    return columns


def _table(step: Step) -> Any:
    import pyarrow as pa

    rows = step.responses

    def lists(arrays: list[Any], of: Any) -> Any:
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return pa.LargeListArray.from_arrays(offsets, of(np.concatenate(arrays) if arrays else np.zeros(0, np.int32)))

    vocabulary = pa.array(step.pieces, pa.string())
    columns = {
        "uid": pa.array([row.uid for row in rows], pa.string()),
        "prompt": pa.array([row.prompt for row in rows], pa.string()),
        "right": pa.array([row.right for row in rows], pa.bool_()),
        "score": pa.array([row.score for row in rows], pa.float64()),
        "length_penalty": pa.array([row.length_penalty for row in rows], pa.float64()),
        "reward": pa.array([json.dumps(row.reward, default=_plain) for row in rows], pa.string()),
        "prompts": lists([row.prompt_ids for row in rows], lambda ids: pa.array(ids, pa.int32())),
        "responses": lists([row.ids for row in rows], lambda ids: pa.array(ids, pa.int32())),
        "pieces": lists(
            [row.tokens for row in rows],
            lambda tokens: vocabulary.take(pa.array(tokens, pa.int32())),
        ),
        "response_mask": lists([row.mask for row in rows], lambda mask: pa.array(mask, pa.bool_())),
    }
    for name in VALUES:
        if rows and all(name in row.values for row in rows):
            columns[name] = lists([row.values[name] for row in rows], lambda values: pa.array(values, pa.float32()))
    about = {"step": step.step, "algorithm": step.algorithm, "settings": step.settings}
    return pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about, default=_plain)})


def _plain(value: Any) -> Any:
    """What JSON does not know: numpy's and torch's scalars as numbers, anything else as its text."""
    return value.item() if getattr(value, "size", None) == 1 and hasattr(value, "item") else str(value)


def _step(columns: dict[str, Any], about: dict[str, Any]) -> Step:
    encoded = columns["pieces"].flatten().dictionary_encode()

    def rows(name: str, values: Any) -> list[Any]:
        lengths = columns[name].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        return np.split(values, np.cumsum(lengths)[:-1])

    def flat(name: str) -> list[Any]:
        return rows(name, columns[name].flatten().to_numpy(zero_copy_only=False))

    values = {name: flat(name) for name in VALUES if name in columns}
    plain = {name: columns[name].to_pylist() for name in ("uid", "prompt", "right", "score", "length_penalty")}
    rewards = [json.loads(text) for text in columns["reward"].to_pylist()]
    tokens = rows("pieces", encoded.indices.to_numpy(zero_copy_only=False))
    masks, all_ids, prompt_ids = flat("response_mask"), flat("responses"), flat("prompts")
    responses = [
        Response(
            **{name: column[row] for name, column in plain.items()},
            tokens=tokens[row],
            mask=masks[row],
            values={name: of_rows[row] for name, of_rows in values.items()},
            reward=rewards[row],
            ids=all_ids[row],
            prompt_ids=prompt_ids[row],
        )
        for row in range(len(rewards))
    ]
    return Step(int(about["step"]), about["algorithm"], about["settings"], encoded.dictionary.to_pylist(), responses)
