"""Runs: where their metrics lie, which algorithm and seed they are, and whether they went as far as they were to go."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gtpo_verl.report.metrics_log import METRICS_FILE, MetricsError, MetricsLog, read_lines, refuse_step
from gtpo_verl.report.prompts import CONFIG_FILE, run_config
from gtpo_verl.report.trackers import EVENTS, read_events, read_wandb_export

BASELINE = "dapo"
# What a set of runs says about its runs, beside their metrics: `{"<run>": {"steps": n, ...}, ...}`.
RECORD_FILE = "runs.json"

_SEED = re.compile(r"[-_]?seed[-_=]?(\d+)$")
_FAMILIES = {"dapo": "DAPO", "grpo": "GRPO", "gtpo": "GTPO", "grpo_s": "GRPO-S"}
_LINES = (".jsonl", ".jsonl.gz")
_EXPORTS = (".csv", ".parquet")


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: its folder's, or its file's without endings: ``gtpo_v1-seed3``.
        algorithm: the name without the seed.
        seed: None where the name has none.
        log: its metrics; without steps where none was logged yet.
        planned: the training steps it was started for; None where nothing says so.
    """

    name: str
    algorithm: str
    seed: int | None
    log: MetricsLog
    planned: int | None = None


@dataclass(frozen=True)
class RunSet:
    """Runs to be compared.

    Attributes:
        groups: runs by algorithm, DAPO first; within an algorithm by seed.
    """

    groups: Mapping[str, Sequence[Run]]

    @property
    def runs(self) -> list[Run]:
        """All runs, algorithm by algorithm."""
        return [run for group in self.groups.values() for run in group]

    @property
    def logs(self) -> list[MetricsLog]:
        """The metrics of all runs."""
        return [run.log for run in self.runs]

    @cached_property
    def _longest(self) -> int:
        return max(run.log.last_step for run in self.runs)

    def end_of(self, run: Run) -> int:
        """The step a run was to reach: what it was started for, or else what the longest of all runs reached."""
        return self._longest if run.planned is None else run.planned

    def ended_early(self, run: Run) -> bool:
        """Whether a run has not reached its last step: it was stopped, it crashed, or it is still running."""
        return run.log.last_step < self.end_of(run)


def label(algorithm: str) -> str:
    """Return an algorithm's name for readers: ``GRPO-S v2`` for ``grpo_s_v2``."""
    for family in sorted(_FAMILIES, key=len, reverse=True):
        if algorithm == family or algorithm.startswith(family + "_"):
            return " ".join([_FAMILIES[family], *algorithm[len(family) :].split("_")[1:]])
    return algorithm


def find_metrics(places: Sequence[Path]) -> list[Path]:
    """Return where each run's metrics are, in the order given; what a folder of runs holds, by name.

    Args:
        places: run folders, metrics files (verl's, also gzipped; tensorboard event files, or folders of one run's; a
            wandb run's history as CSV or parquet), or folders that hold any of these.

    Returns:
        Files, and folders of event files; each once.

    Raises:
        MetricsError: there is no such place, or it holds no run.
    """
    found: dict[Path, None] = {}
    for place in places:
        if not place.exists():
            raise MetricsError(f"{place}: no such run folder or metrics file")
        children = sorted(place.iterdir()) if place.is_dir() else []
        here = [run] if (run := _run_at(place)) else [run for child in children if (run := _run_at(child))]
        if not here:
            known = ", ".join((*_LINES, *_EXPORTS))
            raise MetricsError(f"{place}: no metrics ({known}, tensorboard's event files), and no folder of runs")
        found.update(dict.fromkeys(here))
    return list(found)


def _run_at(place: Path) -> Path | None:
    """The metrics of a run folder, verl's own file before a tracker's, or of a metrics file; None for anything else."""
    if place.is_file():
        if place.match(EVENTS):
            return place.parent
        return place if place.name.endswith((*_LINES, *_EXPORTS)) else None
    files = [place / name for name in (METRICS_FILE, METRICS_FILE + ".gz")]
    folders = [folder for folder in (place / "tensorboard", place) if any(folder.glob(EVENTS))]
    found = [*(path for path in files if path.is_file()), *folders]
    if not found and (place / CONFIG_FILE).is_file():
        return files[0]  # a run that has not come to its first step, or never did
    return found[0] if found else None


def run_name(metrics: Path) -> str:
    """Return a run's name by where its metrics are (`find_metrics`): the run folder's, or else the file's own.

    Of a name that is no text (its bytes are no UTF-8) it is what can be written into a report.
    """
    return os.fsencode(_run_name(metrics)).decode("utf-8", "replace")


def _run_name(metrics: Path) -> str:
    if metrics.name in (METRICS_FILE, METRICS_FILE + ".gz"):
        return metrics.resolve().parent.name
    if metrics.is_dir():
        folder = metrics.resolve()
        return folder.parent.name if folder.name == "tensorboard" else folder.name
    return next(metrics.name.removesuffix(end) for end in (*_LINES, *_EXPORTS) if metrics.name.endswith(end))


def read_runs(places: Sequence[Path]) -> RunSet:
    """Find runs, read them, and group them by algorithm.

    Raises:
        MetricsError: a place holds no runs, a run's metrics are damaged, two runs are the same algorithm and seed, or
            no run has logged a step.
        ValueError: no places were given.
    """
    if not places:
        raise ValueError("no runs to report on")
    runs: dict[tuple[str, int | None], Run] = {}
    for metrics in find_metrics(places):
        run = _read_run(metrics)
        same = runs.setdefault((run.algorithm, run.seed), run)
        if same is not run:
            raise MetricsError(f"{run.log.path} and {same.log.path} are both called {run.name}: report them apart")
    if not any(run.log.steps for run in runs.values()):
        paths = ", ".join(str(run.log.path) for run in runs.values())
        raise MetricsError(f"{paths}: no metrics; has a step finished yet?")
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs.values(), key=lambda run: run.algorithm != BASELINE):
        groups.setdefault(run.algorithm, []).append(run)
    return RunSet({name: sorted(group, key=lambda run: run.seed or 0) for name, group in groups.items()})


def _read_run(metrics: Path) -> Run:
    name = run_name(metrics)
    if metrics.is_dir():
        log = read_events(metrics)
    elif metrics.name.endswith(_EXPORTS):
        log = read_wandb_export(metrics)
    elif metrics.exists():
        log = read_lines(metrics)
    else:
        log = MetricsLog(metrics, {})
    seed = _SEED.search(name)
    algorithm = _SEED.sub("", name) or name
    return Run(name, algorithm, int(seed[1]) if seed and algorithm != name else None, log, _planned(name, metrics))


def _planned(name: str, metrics: Path) -> int | None:
    """The steps a run was started for, by its `config.yaml` or by the record of its set."""
    folder = metrics.parent
    try:
        if (folder / RECORD_FILE).exists():
            steps = int(json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))[name]["steps"])
        else:
            steps = int(run_config(folder)["trainer"]["total_training_steps"])
        refuse_step(steps, name)
    except Exception:  # no such file, one cut off, or of another form: a report does not depend on it
        return None
    return steps
