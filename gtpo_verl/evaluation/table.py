"""The table of an evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gtpo_verl.evaluation.measures import LENGTH

_NOTHING = "-"


def show(summary: Mapping[str, Any], console: Console) -> None:
    """Prints one table a data set.

    Args:
        summary: what `gtpo_verl.evaluation.command` writes as ``summary.json``.
    """
    for name, data in summary["data"].items():
        first, labels = data["differences_to"], list(data["models"])
        table = Table(
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title=f"{name}: {data['problems']} problems, n={summary['n']}",
            title_justify="left",
        )
        table.add_column("measure")
        for label in labels:
            table.add_column(label, justify="right", overflow="fold")
        for label in labels[1:]:
            table.add_column(f"{label} - {first}", justify="right", overflow="fold")
        for estimate in data["models"][first]:
            measure = estimate["measure"]
            cells = [_estimate(_of(data["models"][label], measure)) for label in labels]
            differences = {one["model"]: one for one in data["differences"] if one["measure"] == measure}
            cells += [_difference(differences.get(label)) for label in labels[1:]]
            table.add_row(measure, *cells)
        console.print(table)
    console.print(
        "[95 % interval of the mean over problems, Student's t]; length in tokens"
        + ("; p corrected for the models compared (Holm)" if len(summary["models"]) > 1 else ""),
        highlight=False,
        markup=False,
    )


def _of(estimates: list[Mapping[str, Any]], measure: str) -> Mapping[str, Any] | None:
    return next((one for one in estimates if one["measure"] == measure), None)


def _estimate(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return _NOTHING
    digits = _digits(found["measure"])
    return f"{found['mean']:.{digits}f}{_interval(found, digits, '')}"


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return _NOTHING
    digits = _digits(found["measure"])
    p = "" if found["p_holm"] is None else f" p={found['p_holm']:.2g}"
    return f"{found['mean']:+.{digits}f}{_interval(found, digits, '+')}{p}"


def _interval(found: Mapping[str, Any], digits: int, sign: str) -> str:
    if found["low"] is None:
        return ""
    return f" \\[{found['low']:{sign}.{digits}f}, {found['high']:{sign}.{digits}f}]"


def _digits(measure: str) -> int:
    return 1 if measure == LENGTH else 3
