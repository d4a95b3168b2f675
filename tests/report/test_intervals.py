"""Intervals and tests hold what they promise, on numbers whose truth is known."""

import itertools

import numpy as np
import pytest
from scipy import stats

from gtpo_verl.report import intervals


def test_the_bootstrap_interval_of_eight_seeds_covers_the_mean_in_95_of_100_cases(monkeypatch):
    """The plain one covers it in 88: see the docstring."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 1999)
    generator = np.random.default_rng(0)
    covered = plain = 0
    cases = 1000
    for _ in range(cases):
        values = generator.normal(size=8)
        low, high = intervals.bootstrap_interval([values[:, None]])
        covered += low <= 0 <= high
        usual = stats.bootstrap((values,), np.mean, n_resamples=999, method="percentile", rng=generator)
        plain += usual.confidence_interval.low <= 0 <= usual.confidence_interval.high
    assert 0.925 < covered / cases < 0.975  # three standard errors
    assert plain / cases < 0.925


def test_prompts_that_differ_widen_the_interval_and_sources_count_alike():
    generator = np.random.default_rng(1)
    seeds = generator.normal(scale=0.01, size=(8, 1))
    prompts = generator.normal(scale=0.3, size=(1, 50))
    table = seeds + prompts
    narrow = intervals.bootstrap_interval([table.mean(axis=1, keepdims=True)])
    wide = intervals.bootstrap_interval([table])
    # The means of 50 prompts of this spread have a standard error of 0.04.
    assert np.ptp(narrow) < 0.05 < 0.12 < np.ptp(wide) < 0.3
    assert wide[0] < table.mean() < wide[1]
    one, other = np.full((8, 4), 1.0) + seeds, np.full((8, 400), 3.0) + seeds
    assert np.mean(intervals.bootstrap_interval([one, other])) == pytest.approx(2.0, abs=0.02)


def test_noise_of_each_prompt_in_each_pair_makes_the_interval_wider_than_it_need_be(monkeypatch):
    monkeypatch.setattr(intervals, "_RESAMPLES", 999)
    generator = np.random.default_rng(3)
    covered = 0
    cases = 400
    for _ in range(cases):
        table = generator.normal(size=(8, 20)) + generator.normal(scale=0.2, size=(8, 1))
        low, high = intervals.bootstrap_interval([table])
        covered += low <= 0 <= high
    assert covered / cases > 0.975


def test_the_same_runs_give_the_same_interval():
    table = np.random.default_rng(2).normal(size=(8, 5))
    assert intervals.bootstrap_interval([table]) == intervals.bootstrap_interval([table])


def test_seeds_that_all_agree_give_a_point():
    assert intervals.bootstrap_interval([np.full((8, 1), 0.25)]) == (0.25, 0.25)


def test_p_counts_the_signs():
    differences = np.array([0.5, 0.2, 0.4, -0.1, 0.3, 0.6])
    means = [np.mean(differences * signs) for signs in itertools.product((1, -1), repeat=6)]
    exact = np.mean(np.abs(means) >= abs(differences.mean()) - 1e-12)
    assert intervals.sign_flip_p(differences) == pytest.approx(exact)
    assert intervals.sign_flip_p(np.full(6, 0.1)) == pytest.approx(2 / 64)


def test_holms_correction_of_the_textbook():
    # Holm (1979): sorted p times the number of hypotheses left, never below an earlier one, at most 1.
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert intervals.holm([]) == []
