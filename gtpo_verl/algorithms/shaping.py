"""Shaped rewards of a block of groups: each estimator's rewards of the ratios, and the penalty on length."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gtpo_verl.algorithms.blocks import Block
from gtpo_verl.algorithms.comparison import sequence_entropy, token_peers
from gtpo_verl.algorithms.config import GROP, GtpoConfig, LengthPenaltyConfig
from gtpo_verl.algorithms.estimators import TOKEN, Estimator
from gtpo_verl.algorithms.sets import Scattered, Sets, ratio

# The share of right responses from which on a prompt counts as easy, in `grop`.
GAMMA = 0.75


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
        rewards += block.response.spread(length_penalty(block, config.length_penalty))
    return Shaped(rewards, ratios, sides)


def length_penalty(block: Block, penalty: LengthPenaltyConfig) -> Tensor:
    """R(i), between -1 and 0: what is added to every reward of a response; (responses,) float64.

    Args:
        penalty: which is on, with `max_length` filled in where it needs one.
    """
    if penalty.kind == GROP:
        return group_relative_overlong_punishment(block)
    full = overlong_penalty(block.lengths, penalty)
    return full if penalty.on == "all" else full * block.right


def overlong_penalty(lengths: Tensor, penalty: LengthPenaltyConfig) -> Tensor:
    """R(i) of section 4.5.1: (responses,) int64, tokens -> (responses,) float64, between -1 and 0."""
    assert penalty.max_length is not None  # `compute_advantages` has refused that by name
    start = penalty.max_length - penalty.buffer
    denominator = penalty.buffer if penalty.denominator == "buffer" else penalty.max_length
    gradual = -(lengths - start).clamp(min=0).double() / denominator
    return torch.where(lengths > penalty.max_length, -1, gradual)


def group_relative_overlong_punishment(block: Block) -> Tensor:
    """Later versions of the paper, known here from restatements alone: (responses,) float64, between -0.5 and 0.

    Of an easy prompt, with a share of right responses of at least gamma, the right ones are penalised above a length
    made of theirs. Of a hard one, with a share of at most 1 - gamma, nobody is. Of any other, the larger side is (the
    wrong one where both are equal), above a length made of all.
    """
    group = Scattered(block.group, block.groups)
    wrong, right = block.side.size.view(-1, 2).unbind(1)
    easy, hard = right / (right + wrong) >= GAMMA, right / (right + wrong) <= 1 - GAMMA
    penalised = (block.right == group.spread(easy | (right > wrong))) & ~group.spread(hard)

    counted = block.right | ~group.spread(easy)
    members, tokens = Scattered(block.group[counted], block.groups), block.lengths[counted].double()
    shortest = tokens.new_full((block.groups,), torch.inf).scatter_reduce_(0, members.of, tokens, "amin")
    longest = tokens.new_zeros(block.groups).scatter_reduce_(0, members.of, tokens, "amax")
    knee = torch.maximum((shortest + longest) / 2, members.mean(tokens))
    return -0.5 * (block.lengths / group.spread(knee) - 1).clamp(0, 1) * penalised
