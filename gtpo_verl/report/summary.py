"""The summary of a report: where each run started and where it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from gtpo_verl.report.metrics_log import MetricsLog, best_of_k, entropy, mean_of_k, response_length, reward
from gtpo_verl.report.runs import run_name

WINDOW = 5


@dataclass(frozen=True)
class Change:
    """Mean of a metric over its first and its last values, ``window`` of each; the two do not overlap."""

    start: float
    end: float
    window: int

    @classmethod
    def of(cls, series: Mapping[int, float], window: int) -> Change | None:
        """Return the change over a series by step, or None if it has fewer than two values."""
        values = [series[step] for step in sorted(series)]
        window = min(window, len(values) // 2)
        if window < 1:
            return None
        return cls(sum(values[:window]) / window, sum(values[-window:]) / window, window)


@dataclass(frozen=True)
class RunSummary:
    """One run: its name, the ``path`` of its metrics, the training ``steps`` logged, and how its metrics changed.

    A change is None where the metric was logged less than twice.

    Attributes:
        reward, entropy, length: over the first and last five steps (fewer in a short run); entropy in nats per token,
            length in tokens.
        best_of_k, mean_of_k: validation accuracies, first and last measurement.
        truncated: the metrics ended in a cut-off line.
    """

    algorithm: str
    run: str
    path: str
    steps: int
    reward: Change | None
    entropy: Change | None
    length: Change | None
    best_of_k: Change | None
    mean_of_k: Change | None
    truncated: bool


def summarize(groups: Mapping[str, Sequence[MetricsLog]]) -> list[RunSummary]:
    """Summarise every run of every algorithm."""
    logs = [log for group in groups.values() for log in group]
    best, mean = best_of_k(logs), mean_of_k(logs)
    return [
        RunSummary(
            algorithm=algorithm,
            run=run_name(log.path),
            path=str(log.path),
            steps=len(reward(log)),
            reward=Change.of(reward(log), WINDOW),
            entropy=Change.of(entropy(log), WINDOW),
            length=Change.of(response_length(log), WINDOW),
            best_of_k=Change.of(best.series(log), 1) if best else None,
            mean_of_k=Change.of(mean.series(log), 1) if mean else None,
            truncated=log.truncated,
        )
        for algorithm, group in groups.items()
        for log in group
    ]


def table(summaries: Sequence[RunSummary], groups: Mapping[str, Sequence[MetricsLog]]) -> Table:
    """Lay the summary out for the terminal: one row per run, start → end."""
    logs = [log for group in groups.values() for log in group]
    best, mean = best_of_k(logs), mean_of_k(logs)
    result = Table(
        title=f"Start → end (training: means of up to {WINDOW} steps; validation: first and last)",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    result.add_column("run", no_wrap=True)
    for name in ("steps", "reward", "entropy", "length"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column(f"mean@{mean.k}" if mean else "val mean", justify="right", no_wrap=True)
    result.add_column(f"best@{best.k}" if best else "val best", justify="right", no_wrap=True)
    for one in summaries:
        result.add_row(
            one.run,
            str(one.steps) + ("*" if one.truncated else ""),
            _arrow(one.reward, "{:.2f}"),
            _arrow(one.entropy, "{:.2f}"),
            _arrow(one.length, "{:.0f}"),
            _arrow(one.mean_of_k, "{:.2f}"),
            _arrow(one.best_of_k, "{:.2f}"),
        )
    if any(one.truncated for one in summaries):
        result.caption = "* the last line of its metrics was cut off (the run was killed, or is running) and left out"
    return result


def _arrow(change: Change | None, form: str) -> str:
    return f"{form.format(change.start)}→{form.format(change.end)}" if change else "-"
