"""Responses and verdicts of one model on one data set, on disk: whole rows or none, wherever the process is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet

SCHEMA = pyarrow.schema(
    [
        ("problem", pyarrow.int64()),  # row of the data file, from 0
        ("sample", pyarrow.int32()),
        ("data_source", pyarrow.string()),
        ("text", pyarrow.string()),
        ("tokens", pyarrow.int32()),  # generated, the end token among them
        ("finish_reason", pyarrow.string()),  # stop, or length: cut off
        ("score", pyarrow.float64()),
        ("right", pyarrow.bool_()),
        ("answered", pyarrow.bool_()),  # null: the reward does not say
        ("answer", pyarrow.string()),
    ]
)
_WHOLE = ("problem", "sample", "tokens", "right")
SETTINGS, RESPONSES, _SHARDS = "settings.json", "responses.parquet", "shards"


class Store:
    """A folder with ``settings.json``, ``responses.parquet``, and ``shards`` while an evaluation is under way."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, settings: Mapping[str, Any]) -> None:
        """Refuses to add to responses that were sampled or graded otherwise.

        Args:
            settings: JSON values by name.

        Raises:
            ValueError: what is there was made with others; names each that differs.
        """
        path = self.folder / SETTINGS
        if not self._files():
            return
        if not path.exists():
            raise ValueError(f"{self.folder}: holds responses but no {SETTINGS}; choose another --out")
        try:
            before = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: not readable ({error}); choose another --out") from error
        after = json.loads(json.dumps(settings))
        differing = [
            f"{name}: {before.get(name)} -> {after.get(name)}"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        if differing:
            raise ValueError(
                f"{self.folder}: was made with other settings ({'; '.join(differing)}); choose another --out, or the "
                "same settings to go on"
            )

    def open(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings down, before the first response."""
        path = self.folder / SETTINGS
        if not self._files():  # those of an evaluation that sampled nothing bind nobody
            (self.folder / _SHARDS).mkdir(parents=True, exist_ok=True)
            _write(path, lambda part: part.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n"))

    def responses(self) -> pyarrow.Table:
        """All rows so far, each sample of a problem once, sorted by both.

        Raises:
            ValueError: a file is damaged; names it.
        """
        tables = [SCHEMA.empty_table()]
        for path in self._files():
            try:
                tables.append(_read(path))
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                first = str(error).splitlines()[0]
                raise ValueError(f"{path}: not readable ({first}); delete it to sample its rows again") from error
        table = pyarrow.concat_tables(tables)
        # A process that was killed while it compacted leaves rows twice.
        keys = table.select(["problem", "sample"]).append_column(
            "row", pyarrow.array(range(len(table)), pyarrow.int64())
        )
        first = keys.group_by(["problem", "sample"], use_threads=False).aggregate([("row", "min")])
        return table.take(first.sort_by([("problem", "ascending"), ("sample", "ascending")])["row_min"])

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows, all or none, as a file of their own."""
        folder = self.folder / _SHARDS
        folder.mkdir(parents=True, exist_ok=True)
        number = max((int(path.stem) for path in folder.glob("*.parquet")), default=-1) + 1
        table = pyarrow.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
        _write(folder / f"{number:06}.parquet", lambda part: _write_table(table, part))

    def compact(self) -> None:
        """Makes one file of all."""
        shards = sorted((self.folder / _SHARDS).glob("*"))
        if shards:
            table = self.responses()
            _write(self.folder / RESPONSES, lambda part: _write_table(table, part, "zstd"))
            for shard in shards:
                shard.unlink()
        if (self.folder / _SHARDS).exists():
            (self.folder / _SHARDS).rmdir()

    def _files(self) -> list[Path]:
        whole = self.folder / RESPONSES
        return [*([whole] if whole.exists() else []), *sorted((self.folder / _SHARDS).glob("*.parquet"))]


def _read(path: Path) -> pyarrow.Table:
    table = pyarrow.parquet.read_table(path, page_checksum_verification=True).cast(SCHEMA)
    gaps = [name for name in _WHOLE if table[name].null_count]
    if gaps:
        raise ValueError(f"{', '.join(gaps)}: rows without a value")
    return table


def _write_table(table: pyarrow.Table, path: Path, compression: str = "snappy") -> None:
    pyarrow.parquet.write_table(table, path, compression=compression, write_page_checksum=True)


def _write(path: Path, write: Any) -> None:
    part = path.with_name(path.name + ".part")
    write(part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
