"""From verl's metrics files to figures, tables and the progress display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console


def write_report(
    runs: Sequence[Path],
    output: Path,
    title: str = "Entropy-weighted credit against DAPO",
    console: Console | None = None,
) -> Path:
    """Draw the curves of runs, summarise them, and print the summary.

    Args:
        runs: run folders with a ``metrics.jsonl``, or metrics files; runs whose names differ only in ``-seed<n>`` are
            seeds of one algorithm.
        output: folder for ``curves.png``, ``curves.svg`` and ``summary.json``; made if absent.
        title: the figure's title.
        console: where the summary goes; None for the terminal.

    Returns:
        The path of ``curves.png``.

    Raises:
        MetricsError: a run's metrics are missing, empty or damaged; it names the file.
        ValueError: no runs were given.
    """
    import json
    from dataclasses import asdict

    from gtpo_verl.report import figure, summary
    from gtpo_verl.report.runs import read_runs

    groups = read_runs(runs)
    summaries = summary.summarize(groups)
    output.mkdir(parents=True, exist_ok=True)
    png, _ = figure.save(figure.draw(groups, title), output, "curves")
    (output / "summary.json").write_text(json.dumps([asdict(one) for one in summaries], indent=2) + "\n")
    (console or Console()).print(summary.table(summaries, groups))
    return png
