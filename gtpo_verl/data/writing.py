"""Data files and their manifests, all of a command or none."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from gtpo_verl.tasks.data_files import check_data_file

MANIFEST_SUFFIX = ".manifest.json"
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


def write_all(data_sets: Sequence[DataSet], folder: Path) -> None:
    """Writes ``<name>.parquet`` and its manifest for each, replacing earlier ones.

    Everything is written beside its place, checked, and then renamed, so that a failure leaves what was there before.

    Raises:
        DataFileError: rows are not in verl's form.
        OSError: the folder cannot be written.
    """
    from gtpo_verl.data.downloads import file_sha256

    with _staging(folder) as staging:
        for data_set in data_sets:
            path = staging / f"{data_set.name}.parquet"
            table = pyarrow.Table.from_pylist([dict(row) for row in data_set.rows], schema=data_set.schema)
            pyarrow.parquet.write_table(table, path)
            check_data_file(path)
            facts = {"file": path.name, "rows": len(data_set.rows), "sha256": file_sha256(path)}
            manifest = json.dumps({**facts, **data_set.manifest}, indent=2, ensure_ascii=False) + "\n"
            path.with_suffix(MANIFEST_SUFFIX).write_text(manifest, encoding="utf-8")
        for path in staging.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        for path in sorted(staging.iterdir()):
            os.replace(path, folder / path.name)


@contextlib.contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    existed = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        # The kernel drops the lock with the process; whatever lies here then was left by one that was killed.
        fcntl.flock(handle, fcntl.LOCK_EX)
        for leftover in folder.glob(f"{_STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
        try:
            yield staging
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            if not existed:
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        staging.rmdir()
    finally:
        os.close(handle)
