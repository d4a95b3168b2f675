"""Data files and their manifests, all of a command or none."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from gtpo_verl.data.downloads import file_sha256
from gtpo_verl.data.errors import first_line
from gtpo_verl.tasks.cache import exclusive
from gtpo_verl.tasks.data_files import check_data_file

MANIFEST_SUFFIX = ".manifest.json"
_LOCK = ".gtpo-verl-data.lock"
_STAGING = ".gtpo-verl-data-"

MESSAGES = pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())]))
REWARD_MODEL = pyarrow.struct([("style", pyarrow.string()), ("ground_truth", pyarrow.string())])


def schema(extra_info: Sequence[tuple[str, pyarrow.DataType]]) -> pyarrow.Schema:
    """verl's columns; files that are to be used together need the same ``extra_info``."""
    return pyarrow.schema(
        [
            ("data_source", pyarrow.string()),
            ("prompt", MESSAGES),
            ("ability", pyarrow.string()),
            ("reward_model", REWARD_MODEL),
            ("extra_info", pyarrow.struct(list(extra_info))),
        ]
    )


MATHS_SCHEMA = schema([("split", pyarrow.string()), ("index", pyarrow.int64()), ("source_row", pyarrow.int64())])
REASONING_SCHEMA = schema(
    [
        ("split", pyarrow.string()),
        ("index", pyarrow.int64()),
        ("answer_format", pyarrow.string()),
        ("entry", pyarrow.string()),
    ]
)


@dataclass(frozen=True)
class DataSet:
    """What becomes one parquet file.

    Attributes:
        name: of the file, without its suffix.
        rows: in verl's form.
        schema: of the file.
        manifest: where the rows came from and what became of them; the file's own facts are added.
    """

    name: str
    rows: Sequence[Mapping[str, Any]]
    schema: pyarrow.Schema
    manifest: Mapping[str, Any]


@contextlib.contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Makes a folder that one command at a time looks through and writes into; a failing one leaves no new folders.

    Raises:
        OSError: the folder cannot be made or written.
    """

    def say_so() -> None:
        print(f"waiting for another command that writes into {folder}", file=sys.stderr)

    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / _LOCK, say_so):
            for leftover in folder.glob(f"{_STAGING}*"):  # of commands that were killed
                shutil.rmtree(leftover, ignore_errors=True)
            yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):  # another command has put something there
                path.rmdir()
        raise


def write_all(data_sets: Sequence[DataSet], folder: Path) -> None:
    """Writes ``<name>.parquet`` and its manifest for each, replacing earlier ones, within `output_folder`.

    Everything is written beside its place, checked, and then renamed, so that a failure leaves what was there before.

    Raises:
        DataFileError: rows are not in verl's form.
        OSError: the folder cannot be written; the message names it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=_STAGING, dir=folder) as staging:
            for data_set in data_sets:
                _write(data_set, Path(staging))
            # Sorted, so that no parquet file stands without a manifest, which would make it somebody else's.
            for path in sorted(Path(staging).iterdir()):
                os.replace(path, folder / path.name)
    except (OSError, pyarrow.ArrowException) as error:
        raise OSError(f"{folder}: cannot be written ({first_line(error)})") from error


def _write(data_set: DataSet, folder: Path) -> None:
    path = folder / f"{data_set.name}.parquet"
    table = pyarrow.Table.from_pylist([dict(row) for row in data_set.rows], schema=data_set.schema)
    pyarrow.parquet.write_table(table, path)
    check_data_file(path)
    facts = {"file": path.name, "rows": len(data_set.rows), "sha256": file_sha256(path)}
    manifest = path.with_suffix(MANIFEST_SUFFIX)
    manifest.write_text(
        json.dumps({**facts, **data_set.manifest}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    for written in (path, manifest):
        with written.open("rb") as file:
            os.fsync(file.fileno())
