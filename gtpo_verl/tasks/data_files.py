"""Parquet files in the form verl's ``RLHFDataset`` reads, written and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

COLUMNS = ("data_source", "prompt", "ability", "reward_model", "extra_info")


class DataFileError(ValueError):
    """A data file is missing, unreadable, or not in verl's form; the message names the file and what is wrong."""


def write_data_file(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows as parquet and check the result.

    Raises:
        DataFileError: a row is not in verl's form.
    """
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in rows]), path)
    check_data_file(path)


def check_data_file(path: str | os.PathLike[str]) -> int:
    """Check that a data file has the columns verl and our rewards need, and return its number of rows.

    A row needs a ``data_source`` (text), a ``prompt`` (chat messages with ``role`` and ``content``), a ``reward_model``
    with ``ground_truth`` (text) and, where present, an ``extra_info`` that is a struct. ``ability`` must exist.

    Raises:
        DataFileError: naming the file, and the missing columns or the first bad row (counted from 0).
    """
    path = Path(path)
    if not path.is_file():
        raise DataFileError(f"{path}: no such data file")
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataFileError(f"{path}: not a readable parquet file ({error})") from error
    missing = [column for column in COLUMNS if column not in table.column_names]
    if missing:
        raise DataFileError(
            f"{path}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"there are {', '.join(table.column_names) or 'none'}"
        )
    if table.num_rows == 0:
        raise DataFileError(f"{path}: no rows")
    index = 0
    for batch in table.select(list(COLUMNS)).to_batches(max_chunksize=1024):
        for row in batch.to_pylist():
            problem = _problem_with(row)
            if problem:
                raise DataFileError(f"{path}: row {index}: {problem}")
            index += 1
    return index


def _problem_with(row: Mapping[str, Any]) -> str | None:
    if not isinstance(row["data_source"], str) or not row["data_source"]:
        return "data_source is not a text"
    prompt = row["prompt"]
    if not isinstance(prompt, list) or not prompt:
        return "prompt is not a list of chat messages"
    for message in prompt:
        if not isinstance(message, Mapping) or not message.get("role") or not message.get("content"):
            return "prompt has a message without role or content"
    reward_model = row["reward_model"]
    if not isinstance(reward_model, Mapping) or not isinstance(reward_model.get("ground_truth"), str):
        return "reward_model has no ground_truth text"
    if row["extra_info"] is not None and not isinstance(row["extra_info"], Mapping):
        return "extra_info is not a struct"
    return None
