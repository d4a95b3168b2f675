"""Measures of verdicts, their intervals over problems, and paired differences."""

import numpy as np
import pyarrow
import pytest

from gtpo_verl.evaluation import measures
from gtpo_verl.evaluation.store import SCHEMA

# Student (1908), "The probable error of a mean": hours of sleep gained with two drugs by ten patients. R's
# `t.test(extra ~ group, data = sleep, paired = TRUE)` gives -1.58, 95 % from -2.4598858 to -0.7001142.
FIRST = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SECOND = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def responses(*rows: tuple[int, bool, str | None, int, str]) -> pyarrow.Table:
    """Of (problem, right, answer, tokens, finish reason)."""
    names = ("problem", "right", "answer", "tokens", "finish_reason")
    filled = [dict(zip(names, row, strict=True)) | {"sample": index} for index, row in enumerate(rows)]
    return pyarrow.Table.from_pylist([row | {"answered": row["answer"] is not None} for row in filled], schema=SCHEMA)


def test_differences_are_students() -> None:
    (found,) = measures.differences("length", SECOND, {"first": FIRST})
    assert (found.problems, found.mean) == (10, pytest.approx(-1.58))
    assert (found.low, found.high) == (pytest.approx(-2.4598858), pytest.approx(-0.7001142))
    # All 2^10 signs: nine patients differ, all in one direction.
    assert found.p == pytest.approx(2 / 2**9)
    assert found.p_holm == found.p


def test_the_interval_of_a_mean_is_the_tables() -> None:
    # A mean of 10 and a standard deviation of sqrt(60) over 16 problems; t of 15 degrees is 2.1314 in every table.
    values = np.array([10 - 7.5, 10 + 7.5] * 8)
    found = measures.estimate("length", values)
    half = 2.1314 * np.std(values, ddof=1) / 4
    assert (found.mean, found.low, found.high) == (
        10,
        pytest.approx(10 - half, abs=1e-3),
        pytest.approx(10 + half, abs=1e-3),
    )


def test_shares_stay_shares() -> None:
    found = measures.estimate("pass@2", np.array([1.0] * 9 + [0.0]))
    assert found.high == 1.0
    assert found.low is not None
    assert found.low < 0.9
    alone = measures.estimate("pass@2", np.array([0.5]))
    assert (alone.low, alone.high) == (None, None)


def test_several_models_are_corrected_for_and_few_problems_not_tested() -> None:
    generator = np.random.default_rng(0)
    first = generator.random(20)
    others = {name: first + generator.normal(0.2, 0.3, 20) for name in "abc"}
    found = measures.differences("mean@4", first, others)
    smallest = min(found, key=lambda one: one.p)
    assert smallest.p_holm == pytest.approx(min(1, 3 * smallest.p))
    (few,) = measures.differences("mean@4", first[:5], {"a": others["a"][:5]})
    assert (few.low, few.p, few.p_holm) == (None, None, None)
    assert few.mean == pytest.approx((others["a"] - first)[:5].mean())


def test_measures_of_problems() -> None:
    table = responses(
        (0, True, "7", 10, "stop"),
        (0, False, "8", 20, "stop"),
        (3, False, None, 64, "length"),
        (3, False, "1", 6, "stop"),
    )
    found = {name: list(values) for name, values in measures.by_problem(table, 2, [1, 2]).items()}
    assert found == {
        "mean@2": [0.5, 0.0],
        "pass@1": [0.5, 0.0],
        "pass@2": [1.0, 0.0],
        "maj@1": [0.5, 0.0],
        "maj@2": [0.5, 0.0],
        "answered": [1.0, 0.5],
        "cut off": [0.0, 0.5],
        "length": [15.0, 35.0],
    }


def test_a_reward_that_names_no_answers_has_no_majority() -> None:
    table = responses((0, True, "7", 10, "stop"))
    table = table.set_column(table.column_names.index("answered"), SCHEMA.field("answered"), pyarrow.nulls(1, "bool"))
    assert list(measures.by_problem(table, 1, [1])) == ["mean@1", "pass@1", "cut off", "length"]


def test_samples_that_are_missing_are_no_zeros() -> None:
    with pytest.raises(ValueError, match="problem 0 has 1 samples, not 2"):
        measures.by_problem(responses((0, True, "7", 10, "stop")), 2, [1])
