"""The figure of a report: four panels, one line per algorithm, a band over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gtpo_verl.report.metrics_log import MetricsLog, best_of_k, entropy, mean_of_k, response_length, reward
from gtpo_verl.report.runs import Curve, label

# Okabe and Ito's palette, without its yellow; line style and marker tell lines apart without colour.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9")
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P")

Series = Callable[[MetricsLog], dict[int, float]]


@dataclass(frozen=True)
class Panel:
    """A panel's title, its y axis with unit, and how to read its curve; markers for curves of few points."""

    title: str
    axis: str
    series: Series | None
    sparse: bool = False


def panels(logs: Sequence[MetricsLog]) -> list[Panel]:
    """Return the four panels; the validation panel takes the highest k that all logs share."""
    validation = best_of_k(logs)
    title = f"Validation accuracy, best of {validation.k}" if validation else "Validation accuracy"
    axis = f"best@{validation.k}, share of problems" if validation else "share of problems"
    if validation is None:
        validation = mean_of_k(logs)
        title = f"Validation accuracy, mean of {validation.k}" if validation else title
    return [
        Panel("Policy entropy", "entropy (nats per token)", entropy),
        Panel("Response length", "mean length (tokens)", response_length),
        Panel("Training reward", "mean reward of the batch", reward),
        Panel(title, axis, validation.series if validation else None, sparse=True),
    ]


def draw(groups: Mapping[str, Sequence[MetricsLog]], title: str) -> Figure:
    """Draw the figure; ``groups`` are the logs by algorithm, one log per seed."""
    # matplotlib's object interface: no global state, and no display is looked for.
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex=True)
    for panel, ax in zip(panels([log for logs in groups.values() for log in logs]), axes.flat, strict=True):
        _draw_panel(ax, panel, groups)
    for ax in axes[-1]:
        ax.set_xlabel("training step")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    seeds = {len(logs) for logs in groups.values()}
    several = f"\nline: mean over {_counts(seeds)} seeds, band: lowest to highest" if max(seeds) > 1 else ""
    figure.suptitle(title + several, fontsize=12)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize=11)
    return figure


def _counts(numbers: set[int]) -> str:
    return str(numbers.pop()) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _draw_panel(ax: Axes, panel: Panel, groups: Mapping[str, Sequence[MetricsLog]]) -> None:
    drawn = False
    for index, (algorithm, logs) in enumerate(groups.items()):
        curve = Curve.over_seeds([panel.series(log) for log in logs] if panel.series else [])
        drawn = drawn or bool(curve.steps)
        colour = _COLOURS[index % len(_COLOURS)]
        ax.plot(
            curve.steps,
            curve.mean,
            label=label(algorithm),
            color=colour,
            linestyle=_LINES[index % len(_LINES)],
            linewidth=1.8,
            marker=_MARKERS[index % len(_MARKERS)] if panel.sparse or len(curve.steps) < 10 else None,
            markersize=4.5,
        )
        if len(logs) > 1:
            ax.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    if not drawn:
        ax.text(0.5, 0.5, "not logged", transform=ax.transAxes, ha="center", va="center", fontsize=11, color="0.4")
        ax.set_yticks([])
    ax.set_title(panel.title, fontsize=11)
    ax.set_ylabel(panel.axis, fontsize=10)
    ax.tick_params(labelsize=9)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``name.png`` (1600 pixels wide) and ``name.svg``; return their paths."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=200)
    # Without a date, and with ids that do not change, the same curves give the same file.
    figure.savefig(svg, metadata={"Date": None})
    return png, svg
