"""A measure over the seeds of an algorithm: mean and 95 % interval by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gtpo_verl.report.intervals import half_width


@dataclass(frozen=True)
class Curve:
    """Mean over seeds by step; all arrays have one entry a step, in ascending order.

    Attributes:
        steps: integers; those at which any seed has a value.
        mean: over the seeds that have one.
        low, high: ends of the 95 % interval of the mean (Student's t, n - 1 degrees of freedom); NaN for one seed.
        seeds: how many seeds have a value.
    """

    steps: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: NDArray[np.int64]

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Where no seed is missing; elsewhere the mean is one over others, as some runs ended early."""
        return self.seeds == self.seeds.max(initial=0)

    @property
    def beside_gaps(self) -> NDArray[np.bool_]:
        """Where seeds are missing, and the points beside these, so that a line through them meets the rest."""
        near = ~self.whole
        near[:-1] |= ~self.whole[1:]
        near[1:] |= ~self.whole[:-1]
        return near

    @classmethod
    def over_seeds(cls, seeds: Sequence[Mapping[int, float]]) -> Curve:
        """Combine one series per seed; series without values take no part."""
        present = [seed for seed in seeds if seed]
        steps = sorted(set[int]().union(*present))
        values = np.array([[seed.get(step, np.nan) for step in steps] for seed in present], dtype=np.float64)
        values = values.reshape(len(present), len(steps))
        found = ~np.isnan(values)
        n = found.sum(axis=0)
        mean = np.where(found, values, 0).sum(axis=0) / np.maximum(n, 1)
        half = half_width(np.where(found, values - mean, 0), n)
        return cls(np.array(steps, dtype=np.int64), mean, mean - half, mean + half, n)
