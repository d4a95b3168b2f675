"""From rewards to advantages: over which rewards mean and standard deviation are taken."""

from __future__ import annotations

import torch
from torch import Tensor

from gtpo_verl.algorithms.config import ALL, BATCH, JOINT, NormalizeConfig
from gtpo_verl.algorithms.sets import Moments, Sets


def moments_of_sides(rewards: Tensor, sides: Sets) -> Moments:
    """The moments of the rewards of S- and S+ of each group, (groups, 2)."""
    return Moments.of(rewards, sides).each(lambda field: field.view(-1, 2))


def basis(sides: Moments, normalize: NormalizeConfig) -> Moments:
    """The moments that each side of each group is standardised with.

    Args:
        sides: moments of the rewards of S- and S+, (groups, 2); without those of groups that take no part.
        normalize: with `over` filled in.
    Returns:
        (groups, 2), or (1, 2) for scope `batch`.
    """
    if normalize.scope == BATCH:
        sides = sides.pooled(0)
    other = sides.each(lambda field: field.flip(-1))
    if normalize.over == JOINT:
        return sides.union(other)
    if normalize.over == ALL:  # eqs. 3, 14, 15, 19: r+ is 0 for wrong items and r- is 0 for right ones
        return sides.union(Moments.of_zeros(other.size))
    return sides


def standardize(rewards: Tensor, sides: Sets, moments: Moments, epsilon: float, participants: Tensor) -> Tensor:
    """z = (reward - mean) / (std + epsilon), eqs. 3, 8, 15 and 19.

    Args:
        rewards: (items,) float64.
        sides: the rewards of S- and of S+ of each group, in this order.
        moments: of those sides, broadcastable to (groups, 2).
        participants: (groups,) bool, which groups take part; the others get 0.
    """
    scale = moments.inverse_std(epsilon) * participants[:, None]
    mean = moments.mean.expand_as(scale)
    return (rewards - sides.spread(mean.flatten())) * sides.spread(scale.flatten())


def sign_guarded(advantages: Tensor, right: Tensor) -> Tensor:
    """Cuts off negative advantages of right tokens and positive ones of wrong tokens."""
    return torch.where(right, advantages.clamp(min=0), advantages.clamp(max=0))
