"""The report as one HTML page that needs nothing else: figures to zoom and to point at, and the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gtpo_verl.report.contents import Contents
from gtpo_verl.report.curves import Curve
from gtpo_verl.report.figure import DASHES, colour, compared_algorithms, differences_text, short_label, y_limits
from gtpo_verl.report.measures import Measure
from gtpo_verl.report.runs import BASELINE, Run, RunSet, label
from gtpo_verl.report.summary import Summary
from gtpo_verl.runtime.whole_file import whole_file

_COLUMNS = 3
# BokehJS takes single precision as it is, which halves the page.
_FLOAT = np.float32
_TOOLTIPS = [
    ("", "@algorithm"),
    ("step", "@x"),
    ("mean", "@mean{0.0000}"),
    ("95 % interval", "@low{0.0000} to @high{0.0000}"),
    ("seeds", "@seeds"),
]


def write(contents: Contents, summary: Summary, title: str, path: Path) -> None:
    """Write the page: some 1.3 MB, which is the plotting library, and a few bytes for each value."""
    from bokeh.embed import components
    from bokeh.resources import Resources
    from jinja2 import Environment

    runs = contents.runs
    # Ids of the drawn things that a checkbox shows and hides: by algorithm, and by kind.
    drawn: dict[str, list[str]] = defaultdict(list)
    figures = {name: _grid(panels, runs, drawn) for name, panels in contents.panels.items()}
    if contents.compared:
        plots = [_plot_difference(contents, measure, drawn) for measure in contents.compared]
        figures["differences"] = _laid_out(plots)
    script, grids = components(figures)
    said = differences_text(contents.comparison, contents.compared)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("gtpo_verl.report").joinpath("page.html.jinja").read_text("utf-8"))
    page = template.render(
        title=title,
        description=contents.fingerprints()["report"],
        summary=summary,
        algorithms=[(name, label(name), colour(index)) for index, name in enumerate(runs.groups)],
        runs=runs,
        drawn=drawn,
        library=Resources(mode="inline", components=["bokeh"]).render_js(),
        script=script,
        grids=grids,
        captions={"differences": f"{said[0].upper()}{said[1:]}."},
    )
    with whole_file(path) as part:
        part.write_text(page, encoding="utf-8")


def _grid(measures: Sequence[Measure], runs: RunSet, drawn: dict[str, list[str]]) -> Any:
    from bokeh.models import Range1d

    # All figures of a grid show the same steps, also after zooming.
    end = max(runs.end_of(run) for run in runs.runs)
    steps = Range1d(start=-0.03 * end, end=1.03 * end)
    return _laid_out([_plot(measure, runs, drawn, steps) for measure in measures])


def _laid_out(plots: list[Any]) -> Any:
    from bokeh.layouts import gridplot

    return gridplot(plots, ncols=_COLUMNS, sizing_mode="stretch_width", toolbar_options={"logo": None})


def _plot_difference(contents: Contents, measure: Measure, drawn: dict[str, list[str]]) -> Any:
    """A row an algorithm: the difference to the baseline of each seed, their mean, its interval."""
    from bokeh.models import ColumnDataSource, DataRange1d, HoverTool, PlainText, Range1d
    from bokeh.plotting import figure

    groups, rows = list(contents.runs.groups), compared_algorithms(contents.comparison, contents.compared)
    plot = figure(
        title=measure.title,
        height=90 + 24 * len(rows),
        min_width=280,
        x_axis_label=f"minus {label(BASELINE)}: {measure.axis}",
        x_range=DataRange1d(only_visible=True),
        y_range=Range1d(start=len(rows) - 0.5, end=-0.5),  # the first one on top
        tools="pan,box_zoom,wheel_zoom,reset,save",
    )
    plot.yaxis.ticker = list(range(len(rows)))
    plot.yaxis.major_label_overrides = {
        row: PlainText(short_label(name))  # type: ignore[arg-type]
        for row, name in enumerate(rows)
    }
    plot.vspan(x=[0], color="#666666")
    seeds: list[Any] = []
    means: list[Any] = []
    for one in contents.comparison.differences:
        if one.measure != measure.key:
            continue
        shade, row = colour(groups.index(one.algorithm)), rows.index(one.algorithm)
        named = [("no seed" if seed is None else f"seed {seed}") for seed in one.by_seed]
        dots = ColumnDataSource({"x": list(one.by_seed.values()), "y": [row] * one.pairs, "seed": named})
        seeds.append(plot.scatter("x", "y", source=dots, color=shade, alpha=0.35, size=6))
        mean = ColumnDataSource(
            {
                "x": [one.mean],
                "y": [row],
                "low": [one.low],
                "high": [one.high],
                "interval": ["-" if one.low is None else f"{one.low:+.4f} to {one.high:+.4f}"],
                "pairs": [one.pairs],
                "algorithm": [label(one.algorithm)],
            }
        )
        means.append(plot.scatter("x", "y", source=mean, color=shade, size=9))
        intervals = []
        if one.low is not None:
            intervals.append(plot.segment("low", "y", "high", "y", source=mean, color=shade, line_width=2))
        drawn[f"algorithm {one.algorithm}"] += [renderer.id for renderer in (seeds[-1], means[-1], *intervals)]
        drawn["kind mean"].append(means[-1].id)
        drawn["kind band"] += [renderer.id for renderer in intervals]
    hints = [("", "@algorithm"), ("mean", "@x{+0.0000}"), ("95 % interval", "@interval"), ("pairs", "@pairs")]
    plot.add_tools(
        HoverTool(renderers=means, tooltips=hints, attachment="above"),
        HoverTool(renderers=seeds, tooltips="@seed: @x{+0.0000}", attachment="below"),
    )
    return plot


def _plot(measure: Measure, runs: RunSet, drawn: dict[str, list[str]], steps: Any) -> Any:
    from bokeh.models import HoverTool, Range1d
    from bokeh.plotting import figure

    limits = y_limits([measure.series(run.log) for run in runs.runs])
    low, high = limits or (0, 1)
    plot = figure(
        title=measure.title if limits else f"{measure.title}: not logged",
        height=290,
        min_width=280,
        x_axis_label="training step",
        y_axis_label=measure.axis,
        x_range=steps,
        y_range=Range1d(start=low, end=high),
        tools="pan,box_zoom,wheel_zoom,reset,save",
    )
    means = []
    for index, (algorithm, group) in enumerate(runs.groups.items()):
        for kind, renderers in _draw(plot, measure, runs, group, index).items():
            drawn[f"algorithm {algorithm}"] += [one.id for one in renderers]
            drawn[f"kind {kind}"] += [one.id for one in renderers]
            means += renderers if kind == "mean" else []
    plot.add_tools(HoverTool(renderers=means, tooltips=_TOOLTIPS, mode="vline", line_policy="nearest"))
    return plot


def _draw(plot: Any, measure: Measure, runs: RunSet, group: Sequence[Run], index: int) -> dict[str, list[Any]]:
    """Draw an algorithm's curves; return what was drawn, by kind."""
    from bokeh.models import ColumnDataSource, HoverTool

    series = [measure.series(run.log) for run in group]
    curve = Curve.over_seeds(series)
    style = {"color": colour(index), "line_dash": DASHES[index % len(DASHES)], "line_width": 2}
    values = {"mean": curve.mean, "low": curve.low, "high": curve.high}
    values |= {"whole": np.where(curve.whole, curve.mean, np.nan)}
    values |= {"fewer": np.where(curve.beside_gaps, curve.mean, np.nan)}
    source = ColumnDataSource(
        {
            "x": curve.steps.astype(np.int32),
            **{name: array.astype(_FLOAT) for name, array in values.items()},
            "seeds": curve.seeds.astype(np.int32),
            "algorithm": [label(group[0].algorithm)] * len(curve.steps),
        }
    )
    mean = [plot.line("x", "whole", source=source, **style), plot.line("x", "fewer", source=source, alpha=0.4, **style)]
    if measure.validation or len(curve.steps) < 10:
        mean.append(plot.scatter("x", "mean", source=source, color=colour(index), size=6))
    band = [plot.varea("x", "low", "high", source=source, color=colour(index), alpha=0.13)]
    logged = [(run, sorted(one.items())) for run, one in zip(group, series, strict=True) if one]
    seeds = plot.multi_line(
        "x",
        "y",
        source=ColumnDataSource(
            {
                "x": [np.array([step for step, _ in one], dtype=np.int32) for _, one in logged],
                "y": [np.array([value for _, value in one], dtype=_FLOAT) for _, one in logged],
                "run": [run.name for run, _ in logged],
            }
        ),
        color=colour(index),
        alpha=0.5,
        line_width=1,
        visible=False,
    )
    ends = [(run, one[-1]) for run, one in logged if runs.ended_early(run)]
    ended = plot.scatter(
        "x",
        "y",
        source=ColumnDataSource(
            {
                "x": [step for _, (step, _) in ends],
                "y": [value for _, (_, value) in ends],
                "run": [run.name for run, _ in ends],
                "end": [runs.end_of(run) for run, _ in ends],
            }
        ),
        marker="x",
        color=colour(index),
        size=9,
        line_width=2,
    )
    plot.add_tools(
        HoverTool(renderers=[seeds], tooltips="@run, step $snap_x, $snap_y{0.0000}"),
        HoverTool(renderers=[ended], tooltips="@run ended at step @x of @end"),
    )
    return {"mean": mean, "band": band, "seeds": [seeds], "ended": [ended]}
