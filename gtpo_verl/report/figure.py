"""Figures of a report: one panel a measure, one line an algorithm, a band for the interval over its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gtpo_verl.report.comparison import MIN_PAIRS, Comparison, Difference
from gtpo_verl.report.curves import Curve
from gtpo_verl.report.measures import Measure
from gtpo_verl.report.runs import BASELINE, RunSet, label
from gtpo_verl.runtime.whole_file import whole_file

# Okabe and Ito's palette, with a grey and Tol's wine in place of its yellow: the experiment has eight algorithms. Line
# style and marker tell lines apart without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#999999", "#882255")
# Lengths of strokes and gaps, in points; nothing: a whole line.
DASHES = ((), (6, 3), (6, 2, 2, 2), (2, 2))
_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">")
_COLUMNS = 3
_LABEL = 30  # characters beside a panel


def colour(index: int) -> str:
    """Return the colour of the n-th algorithm."""
    return COLOURS[index % len(COLOURS)]


def y_limits(series: Sequence[Mapping[int, float]]) -> tuple[float, float] | None:
    """Return what a panel's y axis spans: all that was measured, as the interval of two or three seeds can be a hundred
    times as wide; None where nothing was."""
    values = [value for one in series for value in one.values()]
    if not values:
        return None
    margin = 0.08 * (max(values) - min(values)) or 0.05 * abs(values[0]) or 0.05
    return min(values) - margin, max(values) + margin


def draw(runs: RunSet, measures: Sequence[Measure], title: str) -> Figure:
    """Draw a panel for each measure."""
    rows = -(-len(measures) // _COLUMNS)
    # matplotlib's object interface: no global state, and no display is looked for.
    figure = Figure(figsize=(11, 0.9 + 2.7 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for measure, ax in zip(measures, axes, strict=False):
        _draw_panel(ax, measure, runs)
    for ax in axes[len(measures) :]:
        ax.set_axis_off()
    figure.suptitle("\n".join([title, *_legend_text(runs)]), fontsize=12, parse_math=False)
    # Not by their labels, of which matplotlib leaves those out that begin with an underscore.
    lines = {line.get_gid(): line for line in axes[0].lines}
    handles = [lines[_mean_id(measures[0], algorithm)] for algorithm in runs.groups]
    labels = [label(algorithm) for algorithm in runs.groups]
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False, fontsize=11
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a run may be called lr=$1
    return figure


def draw_differences(comparison: Comparison, measures: Sequence[Measure], order: Sequence[str], title: str) -> Figure:
    """Draw a panel for each measure, and in it a row for each algorithm that has a difference to the baseline.

    Args:
        order: all algorithms, in that of their colours.
    """
    names = compared_algorithms(comparison, measures)
    rows = -(-len(measures) // _COLUMNS)
    figure = Figure(figsize=(11, 0.9 + rows * (0.9 + 0.3 * len(names))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).flat)
    for measure, ax in zip(measures, axes, strict=False):
        ax.axvline(0, color="0.4", linewidth=1)
        for one in comparison.differences:
            if one.measure == measure.key:
                _draw_difference(ax, one, names.index(one.algorithm), order.index(one.algorithm))
        ax.set_xlabel(measure.axis, fontsize=10)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        _finish(ax, measure)
    axes[0].set_yticks(range(len(names)), [short_label(name) for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    for ax in axes[::_COLUMNS]:  # the axis is one, its labels are not
        for text in ax.get_yticklabels():
            text.set_parse_math(False)
    for ax in axes[len(measures) :]:
        ax.set_axis_off()
    figure.suptitle(f"{title}\n{differences_text(comparison, measures)}", fontsize=12, parse_math=False)
    return figure


def compared_algorithms(comparison: Comparison, measures: Sequence[Measure]) -> list[str]:
    """Return the algorithms that have a difference in one of these measures."""
    keys = {measure.key for measure in measures}
    return list(dict.fromkeys(one.algorithm for one in comparison.differences if one.measure in keys))


def differences_text(comparison: Comparison, measures: Sequence[Measure]) -> str:
    """Return what the figure of differences shows, and of which step."""
    keys = {measure.key for measure in measures}
    have = {one.low is not None for one in comparison.differences if one.measure in keys}
    some = f", where there are {MIN_PAIRS} or more" if False in have else ""
    interval = f"; line: its 95 % interval{some}" if True in have else ""
    at = f"{comparison.step} of {comparison.end}" if comparison.step < comparison.end else comparison.step
    return f"minus {label(BASELINE)} at step {at}; dots: seeds; marker: their mean{interval}"


def short_label(algorithm: str) -> str:
    """Return a label that leaves room for what it stands beside; the tables have the whole name."""
    name = label(algorithm)
    return name if len(name) <= _LABEL else f"{name[: _LABEL // 2]}…{name[-(_LABEL // 2) + 1 :]}"


def _draw_difference(ax: Axes, one: Difference, row: int, index: int) -> None:
    gid = f"{one.measure}/{one.algorithm}"
    values = list(one.by_seed.values())
    ax.plot(values, [row] * len(values), "o", color=colour(index), alpha=0.35, markersize=4, gid=f"{gid}/seeds")
    if one.low is not None and one.high is not None:
        ax.plot([one.low, one.high], [row, row], "-|", color=colour(index), linewidth=1.8, gid=f"{gid}/interval")
    marker = _MARKERS[index % len(_MARKERS)]
    ax.plot([one.mean], [row], marker, color=colour(index), markersize=7, gid=f"{gid}/mean")


def _mean_id(measure: Measure, algorithm: str) -> str:
    return f"{measure.key}/{algorithm}/mean"


def _legend_text(runs: RunSet) -> list[str]:
    """What line, band and cross mean, as far as the figure has them."""
    seeds = sorted({len(group) for group in runs.groups.values()})
    several = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    text = [f"line: mean over {several} seeds, band: its 95 % interval"] if seeds[-1] > 1 else []
    if any(runs.ended_early(run) for run in runs.runs):
        text.append("cross: a run that ended early or still runs; pale: mean over the other seeds")
    return text


def _draw_panel(ax: Axes, measure: Measure, runs: RunSet) -> None:
    drawn: list[Mapping[int, float]] = []
    for index, (algorithm, group) in enumerate(runs.groups.items()):
        series = [measure.series(run.log) for run in group]
        drawn += series
        curve = Curve.over_seeds(series)
        dashes = DASHES[index % len(DASHES)]
        style: Any = {
            "color": colour(index),
            "linestyle": (0, dashes) if dashes else "-",
            "linewidth": 1.8,
            "markersize": 4.5,
        }
        style["marker"] = _MARKERS[index % len(_MARKERS)] if measure.validation or len(curve.steps) < 10 else None
        gid = f"{measure.key}/{algorithm}"
        mean = np.where(curve.whole, curve.mean, np.nan)
        ax.plot(curve.steps, mean, label=label(algorithm), gid=_mean_id(measure, algorithm), **style)
        if not curve.whole.all():
            fewer = np.where(curve.beside_gaps, curve.mean, np.nan)
            ax.plot(curve.steps, fewer, alpha=0.4, gid=f"{gid}/fewer", **style)
        if not np.isnan(curve.low).all():
            ax.fill_between(
                curve.steps, curve.low, curve.high, color=colour(index), alpha=0.15, linewidth=0, gid=f"{gid}/band"
            )
        ends = [max(one.items()) for run, one in zip(group, series, strict=True) if one and runs.ended_early(run)]
        if ends:
            ax.plot(*zip(*ends, strict=True), "x", color=colour(index), markersize=7, gid=f"{gid}/ended")
    if limits := y_limits(drawn):
        ax.set_ylim(*limits)
    else:
        ax.text(0.5, 0.5, "not logged", transform=ax.transAxes, ha="center", va="center", fontsize=11, color="0.4")
        ax.set_yticks([])
    ax.set_ylabel(measure.axis, fontsize=10)
    ax.set_xlabel("training step", fontsize=10)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _finish(ax, measure)


def _finish(ax: Axes, measure: Measure) -> None:
    ax.set_title(measure.title, fontsize=11, parse_math=False)
    ax.tick_params(labelsize=9)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str, description: str) -> None:
    """Write ``name.png`` (1760 pixels wide) and ``name.svg``, with a description in both for whoever reads the file."""
    with whole_file(folder / f"{name}.png") as part:
        figure.savefig(part, format="png", dpi=160, metadata={"Description": description})
    # Without a date, and with ids that do not change, the same curves give the same file.
    with rc_context({"svg.hashsalt": name}), whole_file(folder / f"{name}.svg") as part:
        figure.savefig(part, format="svg", metadata={"Date": None, "Description": description})
