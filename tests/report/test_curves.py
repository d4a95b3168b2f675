"""Means and intervals over seeds."""

import numpy as np
import pytest
from scipy import stats

from gtpo_verl.report.curves import Curve


def test_mean_and_interval_are_those_of_students_t():
    values = [1.0, 2.0, 4.0]
    curve = Curve.over_seeds([{7: value} for value in values])
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (curve.steps.tolist(), curve.seeds.tolist()) == ([7], [3])
    assert curve.mean == pytest.approx(np.mean(values))
    assert (curve.low[0], curve.high[0]) == (pytest.approx(low), pytest.approx(high))


def test_seeds_that_end_early_stay_as_long_as_they_are_there():
    curve = Curve.over_seeds([{1: 0.0, 2: 1.0, 3: 9.0}, {1: 1.0, 2: 2.0}])
    assert curve.mean.tolist() == [0.5, 1.5, 9.0]
    assert curve.seeds.tolist() == [2, 2, 1]
    assert curve.whole.tolist() == [True, True, False]
    assert curve.beside_gaps.tolist() == [False, True, True]
    assert np.isnan(curve.low).tolist() == [False, False, True]


def test_a_seed_that_logged_nothing_takes_no_part():
    curve = Curve.over_seeds([{1: 2.0}, {}])
    assert (curve.mean.tolist(), curve.seeds.tolist(), curve.whole.tolist()) == ([2.0], [1], [True])


@pytest.mark.parametrize("seeds", [[], [{}]])
def test_no_values_give_an_empty_curve(seeds):
    curve = Curve.over_seeds(seeds)
    assert [len(part) for part in (curve.steps, curve.mean, curve.low, curve.whole, curve.beside_gaps)] == [0] * 5
