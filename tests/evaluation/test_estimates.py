"""Estimates of k samples from n are what counting all subsets gives."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gtpo_verl.evaluation.estimates import MOST_SAMPLES, majority_at_k, pass_at_k


def mean(values: list[Fraction]) -> Fraction:
    return sum(values, Fraction(0)) / len(values)


def elected_right(votes: tuple[tuple[str | None, bool], ...]) -> Fraction:
    """The chance that the elected answer is right, ties drawn."""
    counts = Counter(vote for vote in votes if vote[0] is not None)
    if not counts:
        return Fraction(0)
    tied = [right for (_, right), count in counts.items() if count == max(counts.values())]
    return Fraction(sum(tied), len(tied))


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_at_k_counts_subsets(n: int) -> None:
    for right, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = itertools.combinations([True] * right + [False] * (n - right), k)
        assert pass_at_k(n, right, k) == float(mean([Fraction(any(subset)) for subset in subsets]))


def test_pass_at_k_is_unbiased() -> None:
    """Over all outcomes of n = 6 draws that are right with chance 1/3, its mean is 1 - (2/3)^k."""
    n, chance = 6, Fraction(1, 3)
    for k in range(1, n + 1):
        expected = sum(
            Fraction(math.comb(n, right))
            * chance**right
            * (1 - chance) ** (n - right)
            * Fraction(pass_at_k(n, right, k)).limit_denominator(10**6)
            for right in range(n + 1)
        )
        assert expected == 1 - (1 - chance) ** k


# A text of which only some samples are right was cut short: two answers.
VOTES = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.booleans()), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(VOTES)
def test_majority_at_k_counts_subsets(votes: list[tuple[str | None, bool]]) -> None:
    ks = range(1, len(votes) + 1)
    found = majority_at_k(votes, ks)
    for k in ks:
        exact = mean([elected_right(subset) for subset in itertools.combinations(votes, k)])
        assert found[k] == pytest.approx(float(exact), rel=1e-12, abs=1e-15)


def test_ties_are_drawn_and_silence_does_not_vote() -> None:
    votes = [("7", True), ("8", False), (None, False), (None, False)]
    assert majority_at_k(votes, [4]) == {4: 0.5}
    assert majority_at_k([("7", True), (None, False), (None, False)], [3]) == {3: 1.0}
    assert majority_at_k([(None, False)] * 3, [1, 3]) == {1: 0.0, 3: 0.0}


def test_one_sample_votes_for_itself() -> None:
    votes = [("1", True), ("1", True), ("2", False), (None, False), ("3", False)]
    assert majority_at_k(votes, [1])[1] == pytest.approx(pass_at_k(5, 2, 1))


def test_the_most_samples_overflow_nothing() -> None:
    n = MOST_SAMPLES
    assert pass_at_k(n, 1, n // 2) == pytest.approx(0.5)
    votes = [("1", True)] * (n // 2) + [("2", False)] * (n // 2)
    assert majority_at_k(votes, [n // 2, n])[n] == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 3])
def test_k_is_within_the_samples(k: int) -> None:
    with pytest.raises(ValueError, match=str(k)):
        pass_at_k(2, 1, k)
    with pytest.raises(ValueError, match=str(k)):
        majority_at_k([("1", True)] * 2, [k])
