"""Parquet files in the form verl's ``RLHFDataset`` reads, written and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

_ROWS_SHOWN = 5
# What reading a table can lead to beside `OSError`: a KeyError is pyarrow's name for two columns of one name, a
# ValueError or an OverflowError for dates that Python has not.
UNREADABLE = (pyarrow.ArrowException, KeyError, ValueError, OverflowError)


class DataFileError(ValueError):
    """A data file is missing, unreadable, or not in verl's form; the message names the file and what is wrong."""


def write_data_file(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows as parquet and check the result.

    Raises:
        DataFileError: a row is not in verl's form.
    """
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    check_data_file(path)


def check_data_file(
    path: str | os.PathLike[str],
    prompt_key: str = "prompt",
    data_source_key: str = "data_source",
    problem_with_truth: Callable[[Any], str | None] | None = None,
) -> int:
    """Check that a data file has the columns verl and our rewards need, and return its number of rows.

    A row needs a data source (text), a prompt (chat messages with ``role`` and ``content``), a ``reward_model`` with
    ``ground_truth`` (text or a number where the reward is known, else what its function takes) and, where present, an
    ``extra_info`` that is a struct.

    Args:
        path: the parquet file.
        prompt_key, data_source_key: verl's ``data.prompt_key`` and ``data.reward_fn_key``.
        problem_with_truth: why the reward cannot grade a ground truth, None if it can; asked of every row
            (`gtpo_verl.rewards.truth.problem_with_truth`, where that reward is used).

    Raises:
        DataFileError: naming the file, and the missing columns, the first bad row (counted from 0), or the number of
            rows whose ground truth cannot be graded, with the first of them.
    """
    path = Path(path)
    if not path.is_file():
        raise DataFileError(f"{path}: no such data file")
    try:
        table = pyarrow.parquet.read_table(path)
        column_names = table.column_names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"{path}: not a readable parquet file ({error})") from error

    def rows(columns: list[str]) -> Iterator[dict[str, Any]]:
        for batch in table.select(columns).to_batches(max_chunksize=1024):
            yield from batch.to_pylist()

    names = prompt_key, data_source_key
    return check_rows(path, column_names, rows, table.validate, *names, problem_with_truth)


def check_rows(
    path: Path,
    column_names: Sequence[str],
    rows: Callable[[list[str]], Iterable[Mapping[str, Any]]],
    validate: Callable[..., None],
    prompt_key: str = "prompt",
    data_source_key: str = "data_source",
    problem_with_truth: Callable[[Any], str | None] | None = None,
) -> int:
    """As `check_data_file`, of what was read from `path`.

    Args:
        rows: gives the rows, of these columns.
        validate: of the Arrow table under them.
    """
    try:
        validate(full=True)  # parquet says that text is UTF-8; nothing has checked it
        return _count_rows(path, column_names, rows, prompt_key, data_source_key, problem_with_truth)
    except DataFileError:
        raise
    except UNREADABLE as error:
        raise DataFileError(f"{path}: not a readable {path.suffix.lstrip('.')} file ({error})") from error


def _count_rows(
    path: Path,
    column_names: Sequence[str],
    rows: Callable[[list[str]], Iterable[Mapping[str, Any]]],
    prompt_key: str,
    data_source_key: str,
    problem_with_truth: Callable[[Any], str | None] | None,
) -> int:
    needed = (data_source_key, prompt_key, "reward_model")
    missing = [column for column in needed if column not in column_names]
    if missing:
        raise DataFileError(
            f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"there are {', '.join(column_names) or 'none'}"
        )
    index = 0
    ungradable: list[str] = []
    for row in rows([column for column in (*needed, "extra_info") if column in column_names]):
        problem = problem_with_row(row, prompt_key, data_source_key, problem_with_truth is not None)
        if problem:
            raise DataFileError(f"{path}: row {index}: {problem}")
        if problem_with_truth and (reason := problem_with_truth(row["reward_model"]["ground_truth"])):
            ungradable.append(f"row {index}: {reason}")
        index += 1
    if index == 0:
        raise DataFileError(f"{path}: no rows")
    if ungradable:
        shown = "; ".join(ungradable[:_ROWS_SHOWN])
        more = f"; and {len(ungradable) - _ROWS_SHOWN} more" if len(ungradable) > _ROWS_SHOWN else ""
        raise DataFileError(f"{path}: {len(ungradable)} of {index} ground truths cannot be graded: {shown}{more}")
    return index


def problem_with_row(row: Mapping[str, Any], prompt_key: str, data_source_key: str, graded: bool = True) -> str | None:
    """Return what keeps a row from verl's form (see `check_data_file`), None if nothing does.

    Args:
        graded: whether our reward judges it, which takes truths that are text or numbers.
    """
    if not isinstance(row[data_source_key], str) or not row[data_source_key]:
        return f"{data_source_key} is not a text"
    prompt = row[prompt_key]
    if not isinstance(prompt, list) or not prompt:
        return f"{prompt_key} is not a list of chat messages"
    for message in prompt:
        # What is empty is there all the same: a system message to switch a model's own one off, a tool's result. And
        # a call of a tool has no content. What the model takes, its chat template says (`configuration.data_checks`).
        if not isinstance(message, Mapping) or not message.get("role") or not _says_something(message):
            return f"{prompt_key} has a message without role or content"
    reward_model = row["reward_model"]
    truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    if truth is None:
        return "reward_model has no ground_truth"
    if graded and (isinstance(truth, bool) or not isinstance(truth, str | int | float)):
        return "reward_model has no ground_truth that is text or a number"
    if row.get("extra_info") is not None and not isinstance(row["extra_info"], Mapping):
        return "extra_info is not a struct"
    return None


def _says_something(message: Mapping[str, Any]) -> bool:
    return any(value is not None for name, value in message.items() if name != "role")
