"""The one idea of the paper: a value over the mean of the set that it is compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor


class Sets(ABC):
    """Disjoint sets that n values belong to, numbered from 0; some may be empty."""

    @property
    @abstractmethod
    def size(self) -> Tensor:
        """(sets,) int64: how many values each set has."""

    @abstractmethod
    def sum(self, values: Tensor) -> Tensor:
        """(n,) -> (sets,): the sum of each set."""

    @abstractmethod
    def spread(self, per_set: Tensor) -> Tensor:
        """(sets,) -> (n,): hands each value what belongs to its set."""

    def mean(self, values: Tensor) -> Tensor:
        """(n,) -> (sets,): the mean of each set, 0 for an empty one."""
        return self.sum(values) / self.size.clamp(min=1)


class Scattered(Sets):
    """Sets in any order: value i belongs to set `of[i]`, (n,) int64, of `count` sets."""

    def __init__(self, of: Tensor, count: int) -> None:
        self.of, self.count = of, count

    @cached_property
    def size(self) -> Tensor:
        return torch.bincount(self.of, minlength=self.count)

    def sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.count).scatter_add_(0, self.of, values)

    def spread(self, per_set: Tensor) -> Tensor:
        return per_set.index_select(0, self.of)


class Runs(Sets):
    """Sets that follow one another: the first `size[0]` values, the next `size[1]`, and so on."""

    def __init__(self, size: Tensor) -> None:
        self._size = size

    @property
    def size(self) -> Tensor:
        return self._size

    @cached_property
    def _of(self) -> Tensor:
        return torch.repeat_interleave(self._size)

    def sum(self, values: Tensor) -> Tensor:
        return torch.segment_reduce(values, "sum", lengths=self._size, unsafe=True)

    def spread(self, per_set: Tensor) -> Tensor:
        return per_set.index_select(0, self._of)


class Unions(Sets):
    """Sets of the values of other sets: `of` says which of the sets `parts` make up each union."""

    def __init__(self, parts: Sets, of: Sets) -> None:
        self._parts, self._of = parts, of

    @cached_property
    def size(self) -> Tensor:
        return self._of.sum(self._parts.size)

    def sum(self, values: Tensor) -> Tensor:
        return self._of.sum(self._parts.sum(values))

    def spread(self, per_set: Tensor) -> Tensor:
        return self._parts.spread(self._of.spread(per_set))


def ratio(values: Tensor, sets: Sets) -> Tensor:
    """Each value over the mean of its set; 1 where that mean is 0. The heart of eqs. 2, 5, 11, 13 and 17.

    The ratios of a set sum to its size, which is the conservation of section 3.5, and none exceeds that size.

    Args:
        values: (n,) float64, not negative.
    """
    mean = sets.spread(sets.mean(values))
    return torch.where(mean == 0, 1, values / mean)


class Moments(NamedTuple):
    """Size, mean and sum of squared deviations of sets of values, each field of the same shape in float64."""

    size: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, values: Tensor, sets: Sets) -> Moments:
        """(n,) float64 -> the moments of each set, (sets,)."""
        mean = sets.mean(values)
        return cls(sets.size.double(), mean, sets.sum((values - sets.spread(mean)).square()))

    @classmethod
    def of_zeros(cls, size: Tensor) -> Moments:
        """The moments of sets of `size` zeros."""
        return cls(size, torch.zeros_like(size), torch.zeros_like(size))

    def each(self, change: Callable[[Tensor], Tensor]) -> Moments:
        """The same change of shape, order or weight to all three fields."""
        return Moments(*map(change, self))

    def pooled(self, dim: int) -> Moments:
        """The moments of the union of the sets along `dim`, which stays with size 1."""
        size = self.size.sum(dim, keepdim=True)
        mean = (self.size * self.mean).sum(dim, keepdim=True) / size.clamp(min=1)
        squares = (self.squares + self.size * (self.mean - mean).square()).sum(dim, keepdim=True)
        return Moments(size, mean, squares)

    def union(self, other: Moments) -> Moments:
        """The moments of each set's union with the one at the same place in `other`."""
        both = Moments(*map(torch.stack, zip(self, other, strict=True)))
        return both.pooled(0).each(lambda field: field.squeeze(0))

    def inverse_std(self, epsilon: float) -> Tensor:
        """`1 / (std + epsilon)` with the sample standard deviation; 0 for equal values and for fewer than two."""
        std = (self.squares / (self.size - 1).clamp(min=1)).sqrt()
        # Equal rewards may differ in the last bit after the division by a mean. Rewards are of order 1, so a deviation
        # this small is rounding, which a small epsilon would otherwise blow up.
        equal = std <= 1e-12 * (1 + self.mean.abs())
        return torch.where(equal, 0, 1 / (std + epsilon))
