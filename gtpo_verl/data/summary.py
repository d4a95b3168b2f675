"""What a command reports: rows in, rows out, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


@dataclass
class Counts:
    """Rows of one data set; all but the last two are dropped.

    Attributes:
        rows_in: read, or made.
        duplicates: repetitions of a kept problem.
        conflicting: of problems with more than one answer.
        contaminating: of training problems that a validation set holds too.
        rows_out: written.
    """

    rows_in: int
    duplicates: int = 0
    conflicting: int = 0
    contaminating: int = 0
    rows_out: int = 0

    def as_manifest(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class Summary:
    """One line of the report, and remarks below it."""

    name: str
    counts: Counts
    remarks: list[str] = field(default_factory=list)


def show(summaries: Sequence[Summary], console: Console) -> None:
    """Prints the table and the remarks."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("data set", overflow="fold")
    for heading in ("rows in", "duplicate", "conflicting", "in validation", "rows out"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        numbers: list[Any] = list(summary.counts.as_manifest().values())
        table.add_row(summary.name, *(f"{number:,}" for number in numbers))
    console.print(table)
    for summary in summaries:
        for remark in summary.remarks:
            console.print(f"{summary.name}: {remark}", highlight=False, markup=False, soft_wrap=True)
