"""The three policy losses, to be minimised: clipped per token (GTPO) or per response (GRPO-S)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +- this, as verl does: exp(20) is finite in every dtype that a loss is computed in."""

LossResult = tuple[Tensor, dict[str, float]]
Loss = Callable[..., LossResult]


@dataclass(frozen=True)
class GlobalBatch:
    """What one micro-batch on one rank is a part of, in verl's names. None: it is all there is.

    Attributes:
        dp_size: data-parallel ranks, whose gradients are averaged.
        batch_num_tokens: tokens of the mini-batch over all ranks.
        global_batch_size: responses of the mini-batch over all ranks.
    """

    dp_size: int = 1
    batch_num_tokens: float | None = None
    global_batch_size: float | None = None


def gtpo_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float,
    clip_high: float,
    rollout_is_weights: Tensor | None = None,
    global_batch: GlobalBatch = GlobalBatch(),
) -> LossResult:
    """Eqs. 4 and 16: every token has its own ratio, and counts the same.

    Args:
        log_prob, old_log_prob, advantages: (batch, response_length) of any float dtype; half precision is computed in
            float32. The gradient flows to `log_prob` alone.
        response_mask: (batch, response_length) of any dtype. Where it is 0 no tensor is read, nor gets a gradient.
        clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]`.
        rollout_is_weights: (batch, response_length), multiplies each token's loss.
        global_batch: what the mean is taken over.
    Returns:
        The loss, a scalar, and the metrics `actor/*`.

    Raises:
        ValueError: if there are several ranks and the number of tokens over all of them is not given.
    """
    tokens = _Tokens(log_prob, response_mask)
    log_ratio = tokens.masked(log_prob) - tokens.masked(old_log_prob.detach())
    ratio = _exp(log_ratio)
    loss, clipped = _clipped_objective(ratio, tokens.masked(advantages.detach()), clip_low, clip_high)
    if rollout_is_weights is not None:
        loss = loss * tokens.masked(rollout_is_weights.detach())
    mean = _global_mean(loss, tokens.mask, "batch_num_tokens", global_batch.batch_num_tokens, global_batch.dp_size)
    return mean, _metrics(ratio, clipped, tokens.mask, log_ratio, tokens)


def grpo_s_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float,
    clip_high: float,
    rollout_is_weights: Tensor | None = None,
    global_batch: GlobalBatch = GlobalBatch(),
) -> LossResult:
    """Eqs. 6, 7 and 18: a response's ratio is the arithmetic mean of its tokens', and every response counts the same.

    Arguments and result are those of `gtpo_loss`; a response's advantage is the mean of its tokens'.

    Raises:
        ValueError: if `rollout_is_weights` varies within a response, or if there are several ranks and the number of
            responses over all of them is not given.
    """
    tokens = _Tokens(log_prob, response_mask)
    log_ratio = tokens.masked(log_prob) - tokens.masked(old_log_prob.detach())
    ratio = tokens.mean(_exp(log_ratio))
    return _sequence_loss(ratio, log_ratio, tokens, advantages, clip_low, clip_high, rollout_is_weights, global_batch)


def grpo_s_geometric_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    clip_low: float,
    clip_high: float,
    rollout_is_weights: Tensor | None = None,
    global_batch: GlobalBatch = GlobalBatch(),
) -> LossResult:
    """`grpo_s_loss` with the geometric mean of the tokens' ratios, the other option of section 3.4.2."""
    tokens = _Tokens(log_prob, response_mask)
    log_ratio = tokens.masked(log_prob) - tokens.masked(old_log_prob.detach())
    ratio = _exp(tokens.mean(log_ratio))
    return _sequence_loss(ratio, log_ratio, tokens, advantages, clip_low, clip_high, rollout_is_weights, global_batch)


LOSSES: dict[str, Loss] = {"gtpo": gtpo_loss, "grpo_s": grpo_s_loss, "grpo_s_geometric": grpo_s_geometric_loss}


class _Tokens:
    """Reads tensors where the mask is not 0, and means over the tokens of a response."""

    def __init__(self, log_prob: Tensor, response_mask: Tensor) -> None:
        self.mask = response_mask.bool()
        self.dtype = torch.promote_types(log_prob.dtype, torch.float32)
        self.responses = self.mask.any(-1)

    def masked(self, values: Tensor) -> Tensor:
        """0 where the mask is 0: a NaN there must not meet a product, whose gradient it would survive."""
        return torch.where(self.mask, values.to(self.dtype), 0)

    def mean(self, values: Tensor) -> Tensor:
        """(batch, response_length) -> (batch,), 0 for a response without tokens."""
        return (values * self.mask).sum(-1) / self.mask.sum(-1).clamp(min=1)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _clipped_objective(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """`-min(w A, clip(w) A)` and where the clip decided."""
    plain, clipped = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(plain, clipped), clipped < plain


def _sequence_loss(
    ratio: Tensor,
    log_ratio: Tensor,
    tokens: _Tokens,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    rollout_is_weights: Tensor | None,
    global_batch: GlobalBatch,
) -> LossResult:
    advantage = tokens.mean(tokens.masked(advantages.detach()))
    loss, clipped = _clipped_objective(ratio, advantage, clip_low, clip_high)
    if rollout_is_weights is not None:
        loss = loss * _weight_of_response(rollout_is_weights.detach(), tokens)
    loss = torch.where(tokens.responses, loss, 0)
    mean = _global_mean(
        loss, tokens.responses, "global_batch_size", global_batch.global_batch_size, global_batch.dp_size
    )
    return mean, _metrics(ratio, clipped, tokens.responses, log_ratio, tokens)


def _weight_of_response(weights: Tensor, tokens: _Tokens) -> Tensor:
    mean = tokens.mean(tokens.masked(weights))
    deviation = tokens.masked(weights - mean[:, None]).abs()
    if not (deviation <= 1e-5 * mean.abs()[:, None]).all():  # NaN compares as false: it is refused too
        raise ValueError(
            "rollout_is_weights must be constant within a response for the losses grpo_s and grpo_s_geometric: "
            "set algorithm.rollout_correction.rollout_is=sequence"
        )
    return mean


def _global_mean(loss: Tensor, members: Tensor, key: str, total: float | None, dp_size: int) -> Tensor:
    """The mean over the global mini-batch, this micro-batch's part of it; `dp_size` undoes the average over ranks."""
    if total is None:
        if dp_size > 1:
            raise ValueError(f"global_batch_info.{key} must be given when global_batch_info.dp_size is above 1")
        return loss.sum() / members.sum().clamp(min=1)
    return loss.sum() / max(total, 1) * dp_size  # a mini-batch without members has the loss 0, not NaN


@torch.no_grad()
def _metrics(ratio: Tensor, clipped: Tensor, members: Tensor, log_ratio: Tensor, tokens: _Tokens) -> dict[str, float]:
    """Of ratios, (tokens or responses), at `members`; the estimate of the KL divergence is always per token."""
    count = members.sum().clamp(min=1)
    values = {
        "actor/ratio_mean": (ratio * members).sum() / count,
        "actor/ratio_max": (ratio * members).amax() if ratio.numel() else ratio.new_zeros(()),
        "actor/pg_clipfrac": (clipped & members).sum() / count,
        "actor/ppo_kl": -log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).sum() / tokens.mask.sum().clamp(min=1),
    }
    return dict(zip(values, torch.stack([value.to(ratio.dtype) for value in values.values()]).tolist(), strict=True))
