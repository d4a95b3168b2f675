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
from gtpo_verl.report.runs import RunSet, read_runs


@dataclass(frozen=True)
class Contents:
    """The runs of a report, the panels of its figures by the figure's name, and the comparison of the runs."""

    runs: RunSet
    panels: Mapping[str, Sequence[Measure]]
    comparison: Comparison

    @classmethod
    def of(cls, places: Sequence[Path]) -> Contents:
        """Read and compare the runs at these places; raises what `read_runs` raises."""
        runs = read_runs(places)
        panels = {"curves": measures.curves(runs.logs), "diagnostics": measures.diagnostics(runs.logs)}
        return cls(runs, {name: shown for name, shown in panels.items() if shown}, compare(runs))

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
        hashed = {name: _sha256(drawn) for name, drawn in [*values.items(), ("report", values)]}
        return {name: f"values-sha256:{digest}" for name, digest in hashed.items()}


def _sha256(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
