"""What a report is made of, before anything is drawn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gtpo_verl.report import measures
from gtpo_verl.report.comparison import Comparison, compare
from gtpo_verl.report.measures import Measure
from gtpo_verl.report.metrics_log import MetricsError
from gtpo_verl.report.runs import RunSet, read_runs


@dataclass(frozen=True)
class Contents:
    """The runs of a report, the panels of its figures by the figure's name, the comparison of the runs, and the data
    sources that validation accuracies are means over; none: all."""

    runs: RunSet
    panels: Mapping[str, Sequence[Measure]]
    comparison: Comparison
    sources: Sequence[str] = ()

    @classmethod
    def of(cls, places: Sequence[Path], sources: Sequence[str] = ()) -> Contents:
        """Read and compare the runs at these places.

        Raises:
            MetricsError: as `read_runs` does, or a run that was validated has no accuracy over these data sources.
        """
        runs = read_runs(places)
        sources = list(dict.fromkeys(sources))
        _check(sources, runs)
        panels = {"curves": measures.curves(runs.logs, sources), "diagnostics": measures.diagnostics(runs.logs)}
        shown = {name: panel for name, panel in panels.items() if panel}
        return cls(runs, shown, compare(runs, sources), sources)

    @property
    def compared(self) -> list[Measure]:
        """The measures of the curves of which two seeds or more have a difference to the baseline."""
        drawn = {measure.key for measure in self.panels["curves"]}
        several = {one.measure for one in self.comparison.differences if one.pairs > 1}
        return [measure for key, measure in self.comparison.measures.items() if key in drawn & several]

    def fingerprints(self) -> dict[str, str]:
        """Return, by figure, and as ``report`` for all, what says which values were drawn: a hash of each measure of
        each run. It stands in figures and page, so that these can be held against metrics without being drawn again.
        """
        values = {
            name: {
                measure.key: {run.name: sorted(measure.series(run.log).items()) for run in self.runs.runs}
                for measure in panels
            }
            for name, panels in self.panels.items()
        }
        compared = {measure.key for measure in self.compared}
        differences = [
            (one.measure, one.algorithm, sorted(one.by_seed.items(), key=str))
            for one in self.comparison.differences
            if one.measure in compared
        ]
        drawn = [*values.items(), ("differences", differences), ("report", values)]
        hashed = {name: _sha256(one) for name, one in drawn}
        return {name: f"values-sha256:{digest}" for name, digest in hashed.items()}


def _check(sources: Sequence[str], runs: RunSet) -> None:
    validated = {run.name: found for run in runs.runs if (found := measures.validated_sources([run.log]))}
    known = measures.validated_sources(runs.logs)
    for source in sources if validated else ():
        if source not in known:
            raise MetricsError(f"no run was validated on {source}; there are {', '.join(known)}")
        if lacking := [name for name, found in validated.items() if source not in found]:
            raise MetricsError(f"not validated on {source}: {', '.join(lacking)}")
    if validated and sources and not measures.validation(runs.logs, "mean", sources):
        raise MetricsError(f"there is no k of which all runs have mean@k of {', '.join(sources)}")


def _sha256(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
