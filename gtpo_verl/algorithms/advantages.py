"""Advantages of a flat batch: shape the rewards of whole groups, standardise them, spread them over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gtpo_verl.algorithms.blocks import Block, blocks
from gtpo_verl.algorithms.config import BATCH, GtpoConfig
from gtpo_verl.algorithms.estimators import TOKEN, Estimator, lookup
from gtpo_verl.algorithms.metrics import Tally
from gtpo_verl.algorithms.normalization import basis, moments_of_sides, sign_guarded, standardize
from gtpo_verl.algorithms.sets import Moments, Scattered
from gtpo_verl.algorithms.shaping import Shaped, length_penalty, shape


class AdvantageResult(NamedTuple):
    """Advantages of all tokens, (tokens,) float32, and the `gtpo/*` metrics."""

    advantages: Tensor
    metrics: dict[str, float]


@torch.no_grad()
def compute_advantages(
    estimator: str, entropy: Tensor, offsets: Tensor, group: Tensor, success: Tensor, config: Any = None
) -> AdvantageResult:
    """Entropy-weighted advantages, in time and memory linear in the number of tokens.

    Args:
        estimator: a name in `ESTIMATORS`.
        entropy: (tokens,) of any float dtype, nats: the entropy of the old policy where each token was drawn, response
            after response, without padding. Negative values are taken as 0. It is a constant: no gradient flows.
        offsets: (responses + 1,) integers from 0 to `tokens`: response i owns `entropy[offsets[i]:offsets[i + 1]]`.
        group: (responses,) integers, equal for responses to the same prompt; rows in any order.
        success: (responses,) bool, whether a response is right.
        config: a `GtpoConfig`, or what `GtpoConfig.from_any` takes.

    Raises:
        ValueError: for an unknown estimator, a configuration out of range (naming the key), or input that does not fit
            (naming the argument).
    """
    method, config = _resolved(estimator, config)
    _check(entropy, offsets, group, success)
    shaped_blocks = partial(_shaped_blocks, method, entropy, offsets, group, success, config)

    def participants(block: Block) -> Tensor:
        return block.mixed if config.uniform_groups == "zero" else torch.ones_like(block.mixed)

    def moments(block: Block, shaped: Shaped) -> Moments:
        part = participants(block)[:, None]
        return moments_of_sides(shaped.rewards, shaped.sides).each(lambda field: field * part)

    of_step = None
    if config.normalize.scope == BATCH:
        # To shape everything twice takes less than to keep the rewards of a whole step in float64.
        of_blocks = [moments(block, shaped) for block, _, shaped in shaped_blocks()]
        of_step = Moments(*map(torch.cat, zip(*of_blocks, strict=True))) if of_blocks else None

    advantages = torch.zeros(entropy.shape, dtype=torch.float32, device=entropy.device)
    tally = Tally(config, len(entropy))
    for block, nats, shaped in shaped_blocks():
        compared = basis(of_step or moments(block, shaped), config.normalize)
        values = standardize(shaped.rewards, shaped.sides, compared, config.epsilon, participants(block))
        unguarded = values if method.level == TOKEN else block.response.spread(values)
        final = sign_guarded(unguarded, block.right_tokens) if config.sign_guard else unguarded
        advantages.index_copy_(0, block.tokens, final.float())
        tally.add(block, nats, shaped, unguarded, final)
    return AdvantageResult(advantages, tally.metrics())


class ShapedRewards(NamedTuple):
    """What advantages are made from.

    Attributes:
        rewards: (tokens,) float32: r+ of tokens of right responses and r- of those of wrong ones, with the length
            penalty in it; for `grpo_s_*` the response's one reward at each of its tokens.
        length_penalty: (responses,) float32, between -1 and 0.
    """

    rewards: Tensor
    length_penalty: Tensor


@torch.no_grad()
def shaped_rewards(
    estimator: str, entropy: Tensor, offsets: Tensor, group: Tensor, success: Tensor, config: Any = None
) -> ShapedRewards:
    """The rewards that `compute_advantages` standardises, to look at; arguments and errors are those of that one."""
    method, config = _resolved(estimator, config)
    _check(entropy, offsets, group, success)
    rewards = torch.zeros(entropy.shape, dtype=torch.float32, device=entropy.device)
    penalty = rewards.new_zeros(len(success))
    for block, _, shaped in _shaped_blocks(method, entropy, offsets, group, success, config):
        values = shaped.rewards if method.level == TOKEN else block.response.spread(shaped.rewards)
        rewards.index_copy_(0, block.tokens, values.float())
        if config.length_penalty.enable:
            penalty.index_copy_(0, block.responses, length_penalty(block, config.length_penalty).float())
    return ShapedRewards(rewards, penalty)


@torch.no_grad()
def group_advantages(rewards: Tensor, group: Tensor, epsilon: float = 1e-6) -> Tensor:
    """GRPO's advantage (arXiv 2402.03300), which is DAPO's: one a response, without any entropy.

    Args:
        rewards: (responses,) of any float dtype. DAPO's hold its penalty on overlong responses.
        group: (responses,) integers, equal for responses to the same prompt; rows in any order.
        epsilon: added to the standard deviation.
    Returns:
        (responses,) float32: the reward less the mean of its group, over their sample standard deviation; 0 where all
        of a group are equal, as in a group of one.

    Raises:
        ValueError: naming the argument that does not fit, or is NaN or infinite.
    """
    if rewards.dim() != 1 or not rewards.is_floating_point() or not torch.isfinite(rewards).all():
        raise ValueError(f"rewards must be (responses,) finite floats, not {tuple(rewards.shape)} of {rewards.dtype}")
    if group.shape != rewards.shape or group.is_floating_point():
        raise ValueError(f"group must be {tuple(rewards.shape)} integers, not {tuple(group.shape)} of {group.dtype}")
    _, of = group.to(rewards.device).unique(return_inverse=True)
    groups = Scattered(of, int(of.max()) + 1 if len(of) else 0)
    moments = Moments.of(rewards.double(), groups)
    deviation = rewards.double() - groups.spread(moments.mean)
    return (deviation * groups.spread(moments.inverse_std(epsilon))).float()


def _resolved(estimator: str, config: Any) -> tuple[Estimator, GtpoConfig]:
    method = lookup(estimator)
    config = method.resolve(GtpoConfig.from_any(config))
    if config.length_penalty.needs_max_length and config.length_penalty.max_length is None:
        raise ValueError("algorithm.gtpo.length_penalty.max_length must be set, as length_penalty.enable is true")
    return method, config


def _shaped_blocks(
    method: Estimator, entropy: Tensor, offsets: Tensor, group: Tensor, success: Tensor, config: GtpoConfig
) -> Iterator[tuple[Block, Tensor, Shaped]]:
    """Blocks of whole groups, the nats of each one's tokens in float64, and its rewards."""
    offsets, group, success = (each.to(entropy.device) for each in (offsets.long(), group.long(), success))
    for block in blocks(offsets, group, success):
        nats = entropy.index_select(0, block.tokens).double().clamp_(min=0)
        yield block, nats, shape(method, block, nats, config)


def _check(entropy: Tensor, offsets: Tensor, group: Tensor, success: Tensor) -> None:
    responses = len(offsets) - 1
    if entropy.dim() != 1 or not entropy.is_floating_point():
        raise ValueError(f"entropy must be (tokens,) of a float dtype, not {tuple(entropy.shape)} of {entropy.dtype}")
    if (
        offsets.dim() != 1
        or responses < 0
        or offsets[0] != 0
        or offsets[-1] != len(entropy)
        or (offsets.diff() < 0).any()
    ):
        raise ValueError(f"offsets must be (responses + 1,), rising from 0 to the number of tokens, {len(entropy)}")
    if group.shape != (responses,) or group.is_floating_point():
        raise ValueError(f"group must be ({responses},) integers, not {tuple(group.shape)} of {group.dtype}")
    if success.shape != (responses,) or success.dtype != torch.bool:
        raise ValueError(f"success must be ({responses},) bool, not {tuple(success.shape)} of {success.dtype}")
    if len(entropy) and not all(map(torch.isfinite, torch.aminmax(entropy))):
        raise ValueError("entropy must be finite, but holds NaN or infinity")
