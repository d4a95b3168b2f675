"""Rows of a published file: parquet or JSON lines, with verl's columns or with plain problems and answers.

A batch is a table with ``text`` (the prompt or problem), ``truth`` (its answer) and ``row`` (int64, from 0).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow
import pyarrow.compute
import pyarrow.parquet

from gtpo_verl.data.errors import first_line
from gtpo_verl.tasks.data_files import DataFileError

_BATCH_ROWS = 16384
_READ_BYTES = 1 << 20  # at a time and column; without it a whole row group is read at once
_PROBLEM_COLUMNS = ("problem", "question")
_SCHEMA = pyarrow.schema([("text", pyarrow.string()), ("truth", pyarrow.string()), ("row", pyarrow.int64())])


def read_problems(path: Path, batch_rows: int = _BATCH_ROWS) -> Iterator[pyarrow.Table]:
    """Yields the rows of a file in batches, so that a file of any length needs the memory of one.

    Accepted are the columns ``prompt`` (one chat message of the user) and ``reward_model.ground_truth``, or ``problem``
    or ``question`` and ``answer``.

    Raises:
        DataFileError: the file is unreadable, empty or of another form; the message names file, column and row.
    """
    reader = _json_batches if path.suffix in (".jsonl", ".json") else _parquet_batches
    empty = True
    for batch in reader(path, batch_rows):
        empty = False
        yield batch
    if empty:
        raise DataFileError(f"{path}: no rows")


def _parquet_batches(path: Path, batch_rows: int) -> Iterator[pyarrow.Table]:
    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False) as file:
            schema = file.schema_arrow
            columns = _columns(str(path), schema.names)
            convert = _plain if columns[-1] == "answer" else _chat
            for batch in file.iter_batches(batch_rows, columns=columns):
                text, truth = convert(path, batch, columns, row)
                rows = pyarrow.array(range(row, row + len(batch)), pyarrow.int64())
                yield pyarrow.table([text, truth, rows], schema=_SCHEMA)
                row += len(batch)
    # A KeyError is pyarrow's name for two columns of one name.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        where = f", after row {row - 1}" if row else ""
        raise DataFileError(f"{path}: not a readable parquet file{where} ({first_line(error)})") from error


def _columns(where: str, names: Sequence[str]) -> list[str]:
    problem = next((name for name in _PROBLEM_COLUMNS if name in names), None)
    if "prompt" in names or ("reward_model" in names and problem is None):
        wanted = ["prompt", "reward_model"]
    else:
        wanted = [problem or _PROBLEM_COLUMNS[0], "answer"]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise DataFileError(
            f"{where}: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
            f"there are {', '.join(names) or 'none'}"
        )
    return wanted


def _plain(path: Path, batch: pyarrow.RecordBatch, columns: list[str], start: int) -> tuple[Any, Any]:
    refuse = _refusal(path, start)
    problem, answer = (
        _as_text(path, batch.column(name), name, numbers=name == columns[1], refuse=refuse) for name in columns
    )
    return problem, answer


def _chat(path: Path, batch: pyarrow.RecordBatch, columns: list[str], start: int) -> tuple[Any, Any]:
    refuse = _refusal(path, start)
    prompt, reward_model = (batch.column(name) for name in columns)
    fields = _list_fields(prompt.type)
    if not {"role", "content"} <= fields:
        raise DataFileError(f"{path}: column prompt is {prompt.type}, not a list of messages with role and content")
    if not pyarrow.types.is_struct(reward_model.type) or reward_model.type.get_field_index("ground_truth") < 0:
        raise DataFileError(f"{path}: column reward_model is {reward_model.type}, without ground_truth")
    compute = pyarrow.compute
    single = compute.fill_null(compute.equal(compute.list_value_length(prompt), 1), False)
    refuse(compute.invert(single), "prompt is not one chat message")
    messages = compute.list_flatten(prompt)
    users = compute.fill_null(compute.equal(compute.struct_field(messages, "role"), "user"), False)
    refuse(compute.invert(users), "prompt is not a message of the user")
    text = _as_text(path, compute.struct_field(messages, "content"), "prompt.content", numbers=False, refuse=refuse)
    truth = compute.struct_field(reward_model, "ground_truth")
    return text, _as_text(path, truth, "reward_model.ground_truth", numbers=True, refuse=refuse)


def _list_fields(kind: pyarrow.DataType) -> set[str]:
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)):
        return set()
    return {field.name for field in kind.value_type} if pyarrow.types.is_struct(kind.value_type) else set()


def _as_text(path: Path, column: Any, name: str, numbers: bool, refuse: Callable[[Any, str], None]) -> Any:
    kinds = pyarrow.types
    known = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if not known and not (numbers and kinds.is_integer(column.type)):
        raise DataFileError(f"{path}: column {name} is {column.type}, not text")
    refuse(column.is_null(), f"{name} is missing")
    column.validate(full=True)  # parquet says that a column is UTF-8; nothing has checked it
    return column.cast(pyarrow.string())


def _refusal(path: Path, start: int) -> Callable[[Any, str], None]:
    def refuse(wrong: Any, problem: str) -> None:
        first = pyarrow.compute.index(wrong, True).as_py()
        if first >= 0:
            raise DataFileError(f"{path}: row {start + first}: {problem}")

    return refuse


def _json_batches(path: Path, batch_rows: int) -> Iterator[pyarrow.Table]:
    found: list[tuple[str, str, int]] = []
    row = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append((*_json_row(path, line, number), row))
                    row += 1
                if len(found) == batch_rows:
                    yield _table(found)
                    found = []
    except (UnicodeDecodeError, OSError) as error:
        raise DataFileError(f"{path}: not readable as text ({first_line(error)})") from error
    if found:
        yield _table(found)


def _table(rows: list[tuple[str, str, int]]) -> pyarrow.Table:
    return pyarrow.table([list(column) for column in zip(*rows, strict=True)], schema=_SCHEMA)


def _json_row(path: Path, line: str, number: int) -> tuple[str, str]:
    def refuse(problem: str) -> NoReturn:
        raise DataFileError(f"{path}: line {number}: {problem}")

    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        refuse(f"not JSON ({first_line(error)})")
    if not isinstance(row, dict):
        refuse("not a JSON object; one line is one row")
    problem, answer = _columns(f"{path}: line {number}", list(row))
    if answer == "answer":
        text, truth, names = row[problem], row[answer], (problem, answer)
    else:
        messages, reward_model = row[problem], row[answer]
        if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
            refuse("prompt is not one chat message")
        if messages[0].get("role") != "user":
            refuse("prompt is not a message of the user")
        truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
        text, names = messages[0].get("content"), ("prompt.content", "reward_model.ground_truth")
    if not isinstance(text, str):
        refuse(f"{names[0]} is not text")
    if isinstance(truth, bool) or not isinstance(truth, (str, int)):
        refuse(f"{names[1]} is neither text nor an integer")
    try:
        (text + str(truth)).encode()
    except UnicodeEncodeError:
        refuse("holds half of a surrogate pair, which is no text")
    return text, str(truth)
