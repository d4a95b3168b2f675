"""Runs of the same algorithm under several seeds, and their curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gtpo_verl.report.metrics_log import METRICS_FILE, MetricsLog, metrics_file, read_metrics

_SEED = re.compile(r"[-_]?seed[-_=]?\d+$")
_FAMILIES = {"dapo": "DAPO", "grpo": "GRPO", "gtpo": "GTPO", "grpo_s": "GRPO-S"}


@dataclass(frozen=True)
class Curve:
    """Mean over seeds by step, and the lowest and highest seed; all of equal length."""

    steps: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def over_seeds(cls, seeds: Sequence[Mapping[int, float]]) -> Curve:
        """Combine one series per seed at the steps that all of them have, so that no seed's end bends the mean."""
        steps = sorted(set(seeds[0]).intersection(*seeds[1:])) if seeds else []
        values = [[seed[step] for seed in seeds] for step in steps]
        return cls(steps, [sum(v) / len(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def run_name(path: Path) -> str:
    """Return a run's name by its metrics file: the folder's for ``metrics.jsonl``, else the file's own."""
    return path.resolve().parent.name if path.name == METRICS_FILE else path.stem


def algorithm_of(run: Path) -> str:
    """Return the algorithm that a run trained, by the run's name: ``gtpo_v1`` for ``gtpo_v1-seed3``."""
    name = run_name(metrics_file(run))
    return _SEED.sub("", name) or name


def label(algorithm: str) -> str:
    """Return an algorithm's name for readers: ``GRPO-S v2`` for ``grpo_s_v2``."""
    for family in sorted(_FAMILIES, key=len, reverse=True):
        if algorithm == family or algorithm.startswith(family + "_"):
            return " ".join([_FAMILIES[family], *algorithm[len(family) :].split("_")[1:]])
    return algorithm


def read_runs(runs: Sequence[Path]) -> dict[str, list[MetricsLog]]:
    """Read runs and group them by algorithm, in the order given.

    Raises:
        MetricsError: a run has no readable metrics.
        ValueError: no runs were given.
    """
    if not runs:
        raise ValueError("no runs to report on")
    groups: dict[str, list[MetricsLog]] = {}
    for run in runs:
        groups.setdefault(algorithm_of(run), []).append(read_metrics(run))
    return groups
