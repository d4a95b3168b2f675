"""From verdicts to measures with intervals over problems, and differences of models paired by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow
from numpy.typing import NDArray

from gtpo_verl.evaluation.estimates import majority_at_k, pass_at_k
from gtpo_verl.report.comparison import MIN_PAIRS
from gtpo_verl.report.intervals import half_width, holm, sign_flip_p

LENGTH = "length"
ANSWERED = "answered"
CUT_OFF = "cut off"


@dataclass(frozen=True)
class Estimate:
    """A measure's mean over problems.

    Attributes:
        problems: how many.
        low, high: ends of the 95 % interval of the mean over problems (Student's t), shares kept within 0 to 1; None
            for one problem.
    """

    measure: str
    problems: int
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Difference:
    """A model's measure minus the first model's, over the same problems.

    Attributes:
        low, high: ends of the 95 % interval (Student's t over the paired differences); None for fewer problems than
            `gtpo_verl.report.comparison.MIN_PAIRS`.
        p: of the test that flips the signs of the differences, two-sided; None like the interval.
        p_holm: corrected for all models that are compared in this measure.
    """

    measure: str
    model: str
    problems: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None


def by_problem(responses: pyarrow.Table, n: int, ks: Sequence[int]) -> dict[str, NDArray[np.float64]]:
    """Each measure of each problem, (problems,) in the order of the problems; `ANSWERED` and majority@k only where the
    reward says what was answered.

    Args:
        responses: columns of `gtpo_verl.evaluation.store.SCHEMA`, n rows for each problem.
        ks: each 1 to n.

    Raises:
        ValueError: a problem has not n samples.
    """
    rows: dict[int, list[Mapping[str, object]]] = {}
    columns = ["problem", "sample", "right", "answered", "answer", "tokens", "finish_reason"]
    for row in responses.select(columns).to_pylist():
        rows.setdefault(row["problem"], []).append(row)
    samples = [rows[problem] for problem in sorted(rows)]
    for problem, found in rows.items():
        if len(found) != n:
            raise ValueError(f"problem {problem} has {len(found)} samples, not {n}")
    right = [sum(bool(row["right"]) for row in found) for found in samples]
    measures = {f"mean@{n}": [c / n for c in right]}
    measures |= {f"pass@{k}": [pass_at_k(n, c, k) for c in right] for k in ks}
    if not any(row["answered"] is None for found in samples for row in found):
        votes = [
            majority_at_k([(row["answer"], row["right"]) for row in found], ks)  # type: ignore[misc]
            for found in samples
        ]
        measures |= {f"maj@{k}": [of_problem[k] for of_problem in votes] for k in ks}
        measures[ANSWERED] = [sum(bool(row["answered"]) for row in found) / n for found in samples]
    measures[CUT_OFF] = [sum(row["finish_reason"] == "length" for row in found) / n for found in samples]
    measures[LENGTH] = [sum(row["tokens"] for row in found) / n for found in samples]  # type: ignore[misc]
    return {name: np.array(values, dtype=np.float64) for name, values in measures.items()}


def estimate(measure: str, values: NDArray[np.float64]) -> Estimate:
    """The mean of (problems,) values and its interval."""
    low, high = interval(values)
    if measure != LENGTH and low is not None and high is not None:
        low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(measure, len(values), float(values.mean()), low, high)


def interval(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Ends of the 95 % interval of the mean of (problems,) values by Student's t; None for a single one."""
    if len(values) < 2:
        return None, None
    mean = values.mean()
    half = half_width(values - mean, np.array(len(values)))
    return float(mean - half), float(mean + half)


def differences(
    measure: str, first: NDArray[np.float64], others: Mapping[str, NDArray[np.float64]]
) -> list[Difference]:
    """What differs from the first model in a measure: (problems,) values of each model, problems in the same order."""
    found = []
    for model, values in others.items():
        paired = values - first
        difference = Difference(measure, model, len(paired), float(paired.mean()), None, None, None)
        if len(paired) >= MIN_PAIRS:
            low, high = interval(paired)
            difference = replace(difference, low=low, high=high, p=sign_flip_p(paired))
        found.append(difference)
    corrected = iter(holm([one.p for one in found if one.p is not None]))
    return [one if one.p is None else replace(one, p_holm=next(corrected)) for one in found]
