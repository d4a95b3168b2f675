"""Shaped rewards of a block of groups: each estimator's rewards of the ratios, and the penalty on length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gtpo_verl.algorithms.blocks import Block
from gtpo_verl.algorithms.comparison import sequence_entropy, token_peers
from gtpo_verl.algorithms.config import GtpoConfig, LengthPenaltyConfig
from gtpo_verl.algorithms.estimators import TOKEN, Estimator
from gtpo_verl.algorithms.sets import Sets, ratio


class Shaped(NamedTuple):
    """Rewards of items, which are tokens for GTPO and responses for GRPO-S.

    Attributes:
        rewards: (items,) float64: r+ of right items and r- of wrong ones, which have no other.
        ratio: (items,) float64, what the rewards were made from.
        sides: the items of S- and of S+ of each group.
    """

    rewards: Tensor
    ratio: Tensor
    sides: Sets


def shape(method: Estimator, block: Block, entropy: Tensor, config: GtpoConfig) -> Shaped:
    """Shapes the rewards of a block's items.

    Args:
        entropy: (n,) float64 of the block's tokens, nats, not negative.
        config: resolved for the estimator.
    """
    sides: Sets
    if method.level == TOKEN:
        right, sides, peers = block.right_tokens, block.side_of_token, token_peers(block, config.relative_to)
    else:
        entropy = sequence_entropy(entropy, block.response, config.sequence_entropy, config.entropy_floor)
        right, sides, peers = block.right, block.side, block.side
    weight = torch.where(right, entropy, 1 / entropy.clamp(min=config.entropy_floor))
    ratios = ratio(weight, peers)
    rewards = torch.where(right, method.right(ratios, config), method.wrong(ratios, config))
    if method.level == TOKEN and config.length_penalty.enable:
        rewards += block.response.spread(length_penalty(block.lengths, block.right, config.length_penalty))
    return Shaped(rewards, ratios, sides)


def length_penalty(lengths: Tensor, right: Tensor, penalty: LengthPenaltyConfig) -> Tensor:
    """R(i) of section 4.5.1, between -1 and 0: what is added to every reward of a response.

    Args:
        lengths: (responses,) int64, in tokens.
        right: (responses,) bool.
        penalty: with `max_length` filled in.
    Returns:
        (responses,) float64.
    """
    assert penalty.max_length is not None  # `compute_advantages` has refused that by name
    start = penalty.max_length - penalty.buffer
    denominator = penalty.buffer if penalty.denominator == "buffer" else penalty.max_length
    gradual = -(lengths - start).clamp(min=0).double() / denominator
    full = torch.where(lengths > penalty.max_length, -1, gradual)
    return full if penalty.on == "all" else full * right
