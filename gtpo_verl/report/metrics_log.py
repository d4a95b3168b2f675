"""Reads what verl's ``file`` logger writes: one JSON object a line, ``{"step": n, "data": {"name": value, ...}}``.

(verl 0.9.1, ``verl/utils/tracking.py``, ``FileLogger``; it writes NaN as null.)
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


class MetricsError(ValueError):
    """A metrics file is missing, empty or damaged; the message names it."""


@dataclass(frozen=True)
class MetricsLog:
    """One run's metrics.

    Attributes:
        path: the file they were read from.
        steps: per training step, in ascending order, the finite numbers logged under it; step 0 is validation before
            training. What was logged twice for a step (validation after a resume) counts as logged last.
        truncated: whether the last line was cut off, as a killed run leaves it, and was skipped.
    """

    path: Path
    steps: dict[int, dict[str, float]]
    truncated: bool = False

    def series(self, name: str) -> dict[int, float]:
        """Return the values of one metric by step; empty if it was never logged."""
        return {step: values[name] for step, values in self.steps.items() if name in values}

    def names(self) -> set[str]:
        """Return the names of all metrics logged at any step."""
        return set().union(*self.steps.values()) if self.steps else set()


def metrics_file(run: Path) -> Path:
    """Return the metrics file of a run folder, or of a path that is the file itself.

    Raises:
        MetricsError: there is none, or several and none is called ``metrics.jsonl``.
    """
    if run.is_file():
        return run
    if not run.is_dir():
        raise MetricsError(f"{run}: no such run folder or metrics file")
    if (run / METRICS_FILE).is_file():
        return run / METRICS_FILE
    found = sorted(run.glob("*.jsonl"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise MetricsError(f"{run}: no {METRICS_FILE}, and other .jsonl files are {names}")
    return found[0]


def read_metrics(run: Path) -> MetricsLog:
    """Read the metrics of a run folder or file.

    Raises:
        MetricsError: the file is missing, empty, or damaged elsewhere than in a cut-off last line.
    """
    path = metrics_file(run)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MetricsError(f"{path}: cannot be read ({error.strerror})") from error
    *complete, last = lines
    steps: dict[int, dict[str, float]] = {}
    for number, line in enumerate(complete, start=1):
        if line.strip():
            _add(steps, parse_line(line, f"{path}: line {number}"))
    truncated = False
    if last.strip():
        # verl writes object and newline in one call: without the newline the line may, but need not, be whole.
        try:
            _add(steps, parse_line(last, ""))
        except MetricsError:
            truncated = True
    if not steps:
        raise MetricsError(f"{path}: no metrics{' but a cut-off line' if truncated else ''}; has a step finished yet?")
    return MetricsLog(path, dict(sorted(steps.items())), truncated)


def parse_line(line: bytes, where: str) -> tuple[int, dict[str, float]]:
    """Return step and finite numeric values of one line.

    Raises:
        MetricsError: the line is not in the logger's form; ``where`` names it.
    """
    try:
        record: Any = json.loads(line)
    except ValueError as error:
        raise MetricsError(f"{where}: not JSON ({error})") from error
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("step"), int)
        or not isinstance(record.get("data"), dict)
    ):
        raise MetricsError(f'{where}: not of the form {{"step": n, "data": {{...}}}}')
    values = {
        name: float(value)
        for name, value in record["data"].items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return record["step"], values


def _add(steps: dict[int, dict[str, float]], record: tuple[int, dict[str, float]]) -> None:
    step, values = record
    steps.setdefault(step, {}).update(values)


def entropy(log: MetricsLog) -> dict[int, float]:
    """Return the policy's mean entropy by step, in nats per token."""
    return log.series("actor/entropy")


def response_length(log: MetricsLog) -> dict[int, float]:
    """Return the mean length of the trained responses by step, in tokens."""
    return log.series("response_length/mean")


def reward(log: MetricsLog) -> dict[int, float]:
    """Return the mean reward of the trained responses by step; what dynamic sampling dropped is not among them."""
    return log.series("critic/score/mean") or log.series("critic/rewards/mean")


_BEST_OF_K = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/acc/best@(?P<k>\d+)/mean$")
_MEAN_OF_K = re.compile(r"^val-(?:core|aux)/(?P<source>.+)/acc/mean@(?P<k>\d+)$")


@dataclass(frozen=True)
class ValidationMetric:
    """A validation accuracy over ``k`` responses per problem, averaged over ``sources``."""

    pattern: re.Pattern[str]
    k: int
    sources: tuple[str, ...]

    def series(self, log: MetricsLog) -> dict[int, float]:
        """Return the mean over data sources by step, where all of them were validated."""
        # verl files the highest k of a run under val-core and the others under val-aux.
        names = _names(self.pattern, log)
        per_source = [log.series(names[source, self.k]) for source in self.sources]
        steps = set(per_source[0]).intersection(*per_source[1:])
        return {step: sum(one[step] for one in per_source) / len(per_source) for step in sorted(steps)}


def best_of_k(logs: Sequence[MetricsLog]) -> ValidationMetric | None:
    """Return best@k of ``acc`` for the highest k that all logs have, or None."""
    return _highest_k(_BEST_OF_K, logs)


def mean_of_k(logs: Sequence[MetricsLog]) -> ValidationMetric | None:
    """Return mean@k of ``acc`` for the highest k that all logs have, or None."""
    return _highest_k(_MEAN_OF_K, logs)


def _names(pattern: re.Pattern[str], log: MetricsLog) -> dict[tuple[str, int], str]:
    """Return the metrics that match, by data source and k."""
    matches = filter(None, map(pattern.match, log.names()))
    return {(match["source"], int(match["k"])): match.string for match in matches}


def _highest_k(pattern: re.Pattern[str], logs: Sequence[MetricsLog]) -> ValidationMetric | None:
    common = set.intersection(*(set(_names(pattern, log)) for log in logs))
    if not common:
        return None
    highest = max(k for _, k in common)
    return ValidationMetric(pattern, highest, tuple(sorted(source for source, k in common if k == highest)))
