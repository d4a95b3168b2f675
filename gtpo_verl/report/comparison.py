"""Final values of each algorithm, and what differs from the baseline: paired by seed, with intervals and a correction
for several comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gtpo_verl.report import prompts
from gtpo_verl.report.curves import Curve
from gtpo_verl.report.intervals import CONFIDENCE, bootstrap_interval, holm, sign_flip_p
from gtpo_verl.report.measures import Measure, final_measures
from gtpo_verl.report.metrics_log import METRICS_FILE
from gtpo_verl.report.runs import BASELINE, Run, RunSet

# The mean over the last steps, for measures that are logged at every step.
WINDOW = 5
# Of n pairs without any effect, all have the same sign in 2^(1 - n) of all cases: with 5 pairs no test at 5 % finds
# anything, and no bootstrap interval deserves its name.
MIN_PAIRS = 6


@dataclass(frozen=True)
class Final:
    """Where the runs of an algorithm ended, in one measure.

    Attributes:
        seeds: how many runs have a value; those that ended before `Comparison.step` have none.
        mean: over them; None without any.
        low, high: ends of its 95 % interval (Student's t); None for fewer than two.
        start: mean over the same runs at the beginning: the first validation, or the first steps; None without.
    """

    measure: str
    algorithm: str
    seeds: int
    mean: float | None
    low: float | None
    high: float | None
    start: float | None


@dataclass(frozen=True)
class Difference:
    """An algorithm's final value minus the baseline's, in one measure, over the seeds that both have.

    Attributes:
        by_seed: the difference of each pair.
        prompts: how many prompts were resampled beside the seeds; 0: seeds alone.
        low, high: ends of the 95 % bootstrap interval; None for fewer than `MIN_PAIRS` pairs.
        p: of the exact test that flips the signs of the differences, two-sided; None like the interval.
        p_holm: corrected for all algorithms that are compared in this measure.
    """

    measure: str
    algorithm: str
    by_seed: dict[int | None, float]
    prompts: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None

    @property
    def pairs(self) -> int:
        """How many seeds both have."""
        return len(self.by_seed)

    @property
    def differs(self) -> bool | None:
        """Whether the interval excludes 0 and the corrected p is below 5 %; None with too few pairs."""
        if self.low is None or self.high is None or self.p_holm is None:
            return None
        return not self.low <= 0 <= self.high and self.p_holm < 1 - CONFIDENCE


@dataclass(frozen=True)
class Comparison:
    """What a set of runs says at one step.

    Attributes:
        step: the step that is compared.
        end: the last step that any run was to reach.
        left_out: names of the runs that did not reach `step`.
        measures: of the table, by key.
        finals, differences: measure by measure, the algorithms in the report's order.
    """

    step: int
    end: int
    left_out: list[str]
    measures: dict[str, Measure]
    finals: list[Final]
    differences: list[Difference]


def compare(runs: RunSet, sources: Sequence[str] = ()) -> Comparison:
    """Compare all algorithms at the end, or, while no run is there, at the last step that half of every algorithm's
    runs have reached; accuracies over `sources`, or all."""
    end = max(runs.end_of(run) for run in runs.runs)
    step = end
    if not any(run.log.last_step >= end for run in runs.runs):
        step = min(sorted(run.log.last_step for run in group)[len(group) // 2] for group in runs.groups.values())
    measures = {measure.key: measure for measure in final_measures(runs.logs, sources)}
    finals: list[Final] = []
    differences: list[Difference] = []
    for measure in measures.values():
        at = _validated(measure, runs, step)
        values = {name: _values(measure, group, step, at) for name, group in runs.groups.items()}
        starts = {name: _starts(measure, group, values[name]) for name, group in runs.groups.items()}
        finals += [_final(measure.key, name, values[name], starts[name]) for name in runs.groups]
        found = [
            _difference(measure, runs.groups[name], runs.groups[BASELINE], values[name], values[BASELINE], at)
            for name in runs.groups
            if BASELINE in runs.groups and name != BASELINE
        ]
        differences += _corrected([difference for difference in found if difference is not None])
    left_out = [run.name for run in runs.runs if run.log.last_step < step]
    return Comparison(step, end, left_out, measures, finals, differences)


def _validated(measure: Measure, runs: RunSet, step: int) -> int:
    """The last step up to `step` at which runs that got there have this measure; -1 without any.

    Half as many as have it at any step, at least: a run that is resumed validates where no other does.
    """
    logs = [run.log for run in runs.runs if run.log.last_step >= step]
    have = Counter(at for log in logs for at in measure.series(log) if at <= step)
    return max((at for at, many in have.items() if 2 * many >= max(have.values())), default=-1)


def _values(measure: Measure, group: Sequence[Run], step: int, at: int) -> dict[int | None, float]:
    """By seed, the value at `at` of a validation measure, else the mean of the last steps up to `step`."""
    found: dict[int | None, float] = {}
    for run in group:
        series = measure.series(run.log)
        if run.log.last_step >= step and measure.validation and at in series:
            found[run.seed] = series[at]
        elif run.log.last_step >= step and not measure.validation:
            values = [value for logged, value in sorted(series.items()) if logged <= step]
            if values:
                found[run.seed] = float(np.mean(values[-_window(values) :]))
    return found


def _starts(measure: Measure, group: Sequence[Run], final: Mapping[int | None, float]) -> list[float]:
    """Where the runs that have a final value began: the first validation, or the mean of the first steps; none for runs
    whose first value is their last."""
    series = [sorted(measure.series(run.log).items()) for run in group if run.seed in final]
    first = [[value for _, value in one] for one in series if len(one) > 1]
    return [values[0] if measure.validation else float(np.mean(values[: _window(values)])) for values in first]


def _window(values: Sequence[float]) -> int:
    """How many steps a mean takes; of a short run, the first and the last do not overlap."""
    return max(1, min(WINDOW, len(values) // 2))


def _final(measure: str, algorithm: str, values: Mapping[int | None, float], starts: Sequence[float]) -> Final:
    if not values:
        return Final(measure, algorithm, 0, None, None, None, None)
    curve = Curve.over_seeds([{0: value} for value in values.values()])
    low, high = (None if np.isnan(end) else float(end) for end in (curve.low[0], curve.high[0]))
    start = float(np.mean(starts)) if starts else None
    return Final(measure, algorithm, len(values), float(curve.mean[0]), low, high, start)


def _difference(
    measure: Measure,
    group: Sequence[Run],
    baseline: Sequence[Run],
    values: Mapping[int | None, float],
    base: Mapping[int | None, float],
    at: int,
) -> Difference | None:
    seeds = [seed for seed in values if seed in base]
    if not seeds:
        return None
    pairs = {seed: values[seed] - base[seed] for seed in seeds}
    by_seed = np.array(list(pairs.values()))
    found = Difference(measure.key, group[0].algorithm, pairs, 0, float(by_seed.mean()), None, None, None)
    if len(seeds) < MIN_PAIRS:
        return found
    new, old = ({run.seed: run for run in side} for side in (group, baseline))
    tables = _by_prompt(measure, [(new[seed], old[seed]) for seed in seeds], by_seed, at)
    low, high = bootstrap_interval(tables or [by_seed[:, None]])
    prompts_drawn = sum(table.shape[1] for table in tables)
    return replace(found, prompts=prompts_drawn, low=low, high=high, p=sign_flip_p(by_seed))


def _corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Holm's correction over the algorithms of one measure that have enough pairs."""
    corrected = iter(holm([one.p for one in differences if one.p is not None]))
    return [one if one.p is None else replace(one, p_holm=next(corrected)) for one in differences]


def _by_prompt(
    measure: Measure, pairs: Sequence[tuple[Run, Run]], by_seed: NDArray[np.float64], at: int
) -> list[NDArray[np.float64]]:
    """The differences of a mean accuracy by prompt, a table (pairs, prompts) for each data source.

    Empty where a run lacks the values of a prompt, or where their means are not what verl logged: it counts responses
    that failed as wrong, and does not write them down.
    """
    if not measure.key.startswith("mean@"):
        return []
    values = [[_accuracies(run, at) for run in pair] for pair in pairs]
    tables = []
    for source in measure.sources:
        sides = [[one.get(source, {}) for one in pair] for pair in values]
        shown = sorted(sides[0][0])
        if not shown or any(sorted(side) != shown for pair in sides for side in pair):
            return []
        tables.append(np.array([[new[prompt] - old[prompt] for prompt in shown] for new, old in sides]))
    means = np.mean([table.mean(axis=1) for table in tables], axis=0)
    return tables if np.allclose(means, by_seed, rtol=0, atol=1e-6) else []


def _accuracies(run: Run, step: int) -> Mapping[str, Mapping[str, float]]:
    if step in run.log.prompts or run.log.path.name != METRICS_FILE:
        return run.log.prompts.get(step, {})
    return prompts.accuracies(run.log.path.parent, step)
