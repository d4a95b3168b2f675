"""What a report says in words and tables: for the terminal, the page, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtpo_verl.report.comparison import MIN_PAIRS, WINDOW, Comparison
from gtpo_verl.report.runs import BASELINE, Run, RunSet, label


@dataclass(frozen=True)
class TextTable:
    """A table of texts, with remarks below it; the first column names the row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class Summary:
    """Everything that a report says beside its curves.

    Attributes:
        notes: what the reader must know first.
        states: of every run by name, what is to be said about its end; often nothing.
    """

    notes: list[str]
    tables: list[TextTable]
    states: dict[str, str]


def summarize(runs: RunSet, comparison: Comparison, sources: Sequence[str] = ()) -> Summary:
    """Put a comparison into words; `sources` are those that accuracies are means over, where not all."""
    tables = [_finals(runs, comparison)]
    if any(one.pairs > 1 for one in comparison.differences):
        tables.append(_differences(comparison))
    notes = _notes(runs, comparison)
    if sources:
        notes.append(f"Validation accuracies that name no data source are means over {', '.join(sources)}.")
    return Summary(notes, tables, {run.name: _state(runs, run) for run in runs.runs})


def to_json(runs: RunSet, comparison: Comparison, sources: Sequence[str] = ()) -> dict[str, Any]:
    """Return the numbers of a report."""
    return {
        "step": comparison.step,
        "sources": list(sources),
        "runs": [
            {
                "run": run.name,
                "algorithm": run.algorithm,
                "seed": run.seed,
                "last_step": run.log.last_step,
                "planned": runs.end_of(run),
                "ended_early": runs.ended_early(run),
                "truncated": run.log.truncated,
            }
            for run in runs.runs
        ],
        "finals": [asdict(final) for final in comparison.finals],
        "differences": [{**asdict(one), "pairs": one.pairs, "differs": one.differs} for one in comparison.differences],
    }


def _notes(runs: RunSet, comparison: Comparison) -> list[str]:
    counts = ", ".join(f"{label(name)}: {len(group)}" for name, group in runs.groups.items())
    notes = [f"Runs: {counts}."]
    early = [run for run in runs.runs if runs.ended_early(run)]
    if early:
        notes.append(
            f"{len(early)} of {len(runs.runs)} ended early or still run: "
            + ", ".join(f"{run.name} at step {run.log.last_step} of {runs.end_of(run)}" for run in early)
            + "."
        )
    if short := [name for name in comparison.left_out if name not in {run.name for run in early}]:
        notes.append(f"In no table, as they were to end before step {comparison.step}: {', '.join(short)}.")
    if comparison.step < comparison.end:
        notes.append(
            f"No run has reached step {comparison.end}: the tables are of step {comparison.step}, which half of every "
            "algorithm's runs have reached. They are no result."
        )
    return notes


def _state(runs: RunSet, run: Run) -> str:
    if not run.log.steps:
        return "has logged no step"
    words = ["ended early, or still runs"] if runs.ended_early(run) else []
    return ", ".join([*words, "its metrics are cut off"] if run.log.truncated else words)


def _finals(runs: RunSet, comparison: Comparison) -> TextTable:
    rows = [
        [
            one.measure,
            label(one.algorithm),
            _number(one.start),
            _number(one.mean),
            _interval(one.low, one.high),
            f"{one.seeds} of {len(runs.groups[one.algorithm])}",
        ]
        for one in comparison.finals
        if any(other.seeds for other in comparison.finals if other.measure == one.measure)
    ]
    note = (
        "Means over runs, with the 95 % interval of Student's t. Validation: the first and the last. The others: up to "
        f"{WINDOW} steps at either end."
    )
    columns = ["measure", "algorithm", "start", "end", "95 % interval", "runs"]
    return TextTable(f"At step {comparison.step}", columns, rows, [note])


def _differences(comparison: Comparison) -> TextTable:
    rows = [
        [
            one.measure,
            label(one.algorithm),
            _number(one.mean, "+"),
            _interval(one.low, one.high, "+"),
            f"{one.pairs} x {one.prompts}" if one.prompts else str(one.pairs),
            "-" if one.p is None else f"{one.p:.3f}",
            "-" if one.p_holm is None else f"{one.p_holm:.3f}",
            {True: "yes", False: "no", None: "-"}[one.differs],
        ]
        for one in comparison.differences
    ]
    note = (
        "Pairs of runs with one seed (x prompts, where each one's accuracy is known). Interval: bootstrap over both. "
        "p: exact test that flips signs, corrected over the algorithms of a measure. Differs: the interval excludes 0 "
        f"and the corrected p is below 0.05. Fewer than {MIN_PAIRS} pairs cannot show that."
    )
    columns = ["measure", "algorithm", "difference", "95 % interval", "pairs", "p", "Holm", "differs"]
    return TextTable(f"Minus {label(BASELINE)}, at step {comparison.step}", columns, rows, [note])


def _interval(low: float | None, high: float | None, sign: str = "") -> str:
    return "-" if low is None or high is None else f"{_number(low, sign)} to {_number(high, sign)}"


def _number(value: float | None, sign: str = "") -> str:
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:{sign}.{digits}f}"


def show(summary: Summary, console: Console) -> None:
    """Print notes and tables on a terminal."""
    for note in summary.notes:
        console.print(note, highlight=False, markup=False)
    for table in summary.tables:
        laid_out = Table(title=table.title, caption="\n".join(table.notes), box=box.SIMPLE, padding=(0, 1, 0, 0))
        for index, column in enumerate(table.columns):
            names = index < 2  # which are broken where a terminal is narrow; a number without its end is another
            laid_out.add_column(column, justify="left" if names else "right", no_wrap=not names, overflow="fold")
        for row in table.rows:
            laid_out.add_row(*map(Text, row))  # a name may hold what rich takes for markup: [lr=1]
        console.print(laid_out)
