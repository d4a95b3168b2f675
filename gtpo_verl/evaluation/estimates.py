"""What k samples of a problem would give, estimated from n of them without drawing any.

Both are means over all subsets of k of the n samples, which makes them unbiased for k independent samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import comb

import numpy as np

# Above it C(n, k) is no float any more.
MOST_SAMPLES = 1024


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that one of k samples is right: 1 - C(n - c, k) / C(n, k) (Chen et al., arXiv 2107.03374, eq. 1).

    Args:
        n: samples.
        right: how many of them are right (c).
        k: 1 to n.

    Raises:
        ValueError: the numbers do not go together.
    """
    if not 0 <= right <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {right} right ones among {n} samples")
    return (comb(n, k) - comb(n - right, k)) / comb(n, k)


def majority_at_k(votes: Sequence[tuple[str | None, bool]], ks: Iterable[int]) -> dict[int, float]:
    """The chance that the most frequent answer of k samples is right.

    Samples without an answer do not vote; where nobody votes, nothing is right. Of answers with equally many votes each
    is elected with the same chance. Answers are the same if their texts are.

    Exact: for every number v of votes that could win, the subsets in which nobody has more are counted by multiplying,
    candidate by candidate, the polynomials whose coefficients are the ways to take 0 to v of its samples.

    Args:
        votes: of each sample its answer, None without one, and whether it is right. Samples of one text of which only
            some are right (a text can be cut short) are two candidates.
        ks: each 1 to n.

    Raises:
        ValueError: a k is not within 1 to n.
    """
    n, ks = len(votes), list(ks)
    if any(not 1 <= k <= n for k in ks):
        raise ValueError(f"majority@{ks} of {n} samples")
    candidates = [(right, count) for (answer, right), count in Counter(votes).items() if answer is not None]
    abstaining = np.array([float(comb(n - sum(c for _, c in candidates), u)) for u in range(n + 1)])
    wins = np.zeros(n + 1)  # by k: subsets that elect a right answer, a tie counted by the share of right ones in it
    for most in range(1, max((count for _, count in candidates), default=0) + 1):
        ties = sum(count >= most for _, count in candidates)
        # [t, k]: subsets of k samples in which t candidates have `most` votes and the others fewer; and the same, each
        # counted as often as right ones are among the t.
        subsets, of_right = np.zeros((ties + 1, n + 1)), np.zeros((ties + 1, n + 1))
        subsets[0] = abstaining
        for right, count in candidates:
            fewer = [float(comb(count, u)) for u in range(min(count, most - 1) + 1)]
            new_subsets, new_of_right = _times(subsets, fewer), _times(of_right, fewer)
            if count >= most:
                ways = float(comb(count, most))
                new_subsets[1:, most:] += ways * subsets[:-1, :-most]
                new_of_right[1:, most:] += ways * (of_right[:-1, :-most] + right * subsets[:-1, :-most])
            subsets, of_right = new_subsets, new_of_right
        wins += (of_right[1:] / np.arange(1, ties + 1)[:, None]).sum(axis=0)
    return {k: float(wins[k] / comb(n, k)) for k in ks}


def _times(table: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Each row, a polynomial, times another; terms beyond the row's length cannot occur."""
    result = table * coefficients[0]
    for power, coefficient in enumerate(coefficients[1:], 1):
        result[:, power:] += coefficient * table[:, :-power]
    return result
