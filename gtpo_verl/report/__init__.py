"""From the metrics of runs to figures, tables, a page, and the progress display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gtpo_verl.runtime import tables
from gtpo_verl.runtime.whole_file import whole_file


def write_report(
    runs: Sequence[Path],
    output: Path,
    title: str = "Entropy-weighted credit against DAPO",
    console: Console | None = None,
    sources: Sequence[str] = (),
) -> Path:
    """Draw the curves of runs, compare them, and print the tables.

    Args:
        runs: run folders, metrics files, or folders of these (`gtpo_verl.report.runs.find_metrics`); runs whose names
            differ only in ``-seed<n>`` are seeds of one algorithm.
        output: folder for ``curves``, ``diagnostics`` and ``differences`` (PNG and SVG), ``report.html`` and
            ``report.json``; made if absent.
        title: of figures and page.
        console: where the tables go; None for the terminal.
        sources: data sources that validation accuracies are means over; none for all. Those of each stand beside them.

    Returns:
        The path of ``curves.png``.

    Raises:
        MetricsError: a run's metrics are missing or damaged, or no run has logged a step; it names the file. Or a run
            that was validated has no accuracy over `sources`; it names the run.
        ValueError: no runs were given.
    """
    import json

    from gtpo_verl.report import figure, page, summary
    from gtpo_verl.report.contents import Contents

    contents = Contents.of(runs, sources)
    said = summary.summarize(contents.runs, contents.comparison, contents.sources)
    marks = contents.fingerprints()
    output.mkdir(parents=True, exist_ok=True)
    figures = {name: figure.draw(contents.runs, panels, title) for name, panels in contents.panels.items()}
    if contents.compared:
        order = list(contents.runs.groups)
        figures["differences"] = figure.draw_differences(contents.comparison, contents.compared, order, title)
    for name, drawn in figures.items():
        figure.save(drawn, output, name, marks[name])
    for name in {"diagnostics", "differences"} - figures.keys():
        for kind in ("png", "svg"):  # of an earlier report
            (output / f"{name}.{kind}").unlink(missing_ok=True)
    numbers = summary.to_json(contents.runs, contents.comparison, contents.sources)
    with whole_file(output / "report.json") as part:
        part.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    page.write(contents, said, title, output / "report.html")
    summary.show(said, console or tables.console())
    return output / "curves.png"
