"""Log-probability and entropy of logits whose vocabulary is split over ranks (tensor parallelism)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gtpo_verl.entropy.functional import backend, check, check_temperature, may_overwrite


@dataclass(frozen=True)
class Partial:
    """Statistics of some columns of the logits; partials of disjoint columns add up with :func:`combine`.

    Each field has the labels' shape, fp32. With ``d_v = (x_v - max_logit) / T`` over these columns:

    Attributes:
        max_logit: largest logit, in the logits' own units (not divided by the temperature).
        others: sum of ``e^(d_v)`` over all columns but one occurrence of the maximum. The whole sum is
            ``1 + others``; kept apart, a sum far below 1 survives fp32, and with it the entropy near certainty.
        u: sum of ``e^(d_v) d_v`` (nats, never positive).
        label_logit: the label's logit, NaN where the label is not among these columns.
    """

    max_logit: torch.Tensor
    others: torch.Tensor
    u: torch.Tensor
    label_logit: torch.Tensor


def logprob_entropy_partial(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    first_label: int = 0,
) -> Partial:
    """Statistics of one vocabulary shard, in one pass, without a gradient.

    Args:
        logits: ``[..., V_shard]``, columns ``first_label`` to ``first_label + V_shard`` of the whole.
        labels: ``[...]``, integers in the whole vocabulary.
        temperature: as in :func:`gtpo_verl.entropy.logprob_entropy`; pass the same one to :func:`combine`.
        first_label: vocabulary index of the shard's first column.

    Raises:
        TypeError, ValueError: as :func:`gtpo_verl.entropy.logprob_entropy`.
    """
    temperature = check(logits, labels, temperature)
    return Partial(
        *backend(logits).statistics(logits.detach(), labels, temperature, first_label=first_label, partial=True)
    )


def combine(partials: Sequence[Partial], temperature: float | torch.Tensor = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """``(log_prob, entropy)`` of the whole vocabulary from the partials of its disjoint parts, in any order.

    Args:
        partials: at least one; together they cover the vocabulary once.
        temperature: the one the partials were computed with.

    Returns:
        ``(log_prob, entropy)`` as :func:`gtpo_verl.entropy.logprob_entropy` gives for the concatenated logits;
        ``log_prob`` is NaN where no part holds the label.

    Raises:
        ValueError: no partials.
    """
    log_prob, entropy, _, _ = combine_statistics(partials, temperature)
    return log_prob, entropy


def combine_statistics(
    partials: Sequence[Partial], temperature: float | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`combine`, and the whole's ``max_logit`` and ``others``, which a backward needs."""
    if not partials:
        raise ValueError("no partials to combine")
    max_logit = torch.stack([p.max_logit for p in partials])
    others = torch.stack([p.others for p in partials])
    u = torch.stack([p.u for p in partials])
    label_logit = torch.stack([p.label_logit for p in partials])
    temperature = check_temperature(temperature, partials[0].max_logit, partials[0].max_logit.dtype)

    # A shard of only -inf (a masked or padded part of the vocabulary) holds no probability, and NaN statistics.
    empty = max_logit == float("-inf")
    high = max_logit.amax(0)
    d = ((max_logit - high) / temperature).masked_fill(empty, float("-inf"))
    f = d.exp()
    d = d.clamp(min=-700.0)  # 0 * -inf
    others, u = others.masked_fill(empty, 0.0), u.masked_fill(empty, 0.0)
    # Equal maxima all count 1 each; one of them is the 1 of 1 + others.
    top = d == 0
    total = torch.where(top, others, f * (1.0 + others)).sum(0) + (top.sum(0) - 1)
    u = (f * (u + d * (1.0 + others))).sum(0)
    total = torch.where(high.isfinite(), total, torch.nan)

    present = ~label_logit.isnan()
    label = torch.where(present, label_logit, 0.0).sum(0)
    label = torch.where(present.any(0), label, torch.nan)
    log_sum = total.log1p()
    log_prob = (label - high) / temperature - log_sum
    return log_prob, log_sum - u / (1.0 + total), high, total


class _ShardedLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        temperature: float | torch.Tensor,
        first_label: int,
        group: dist.ProcessGroup | None,
        overwrite: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own = torch.stack(
            backend(logits).statistics(logits, labels, temperature, first_label=first_label, partial=True)
        )
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, own, group=group)
        log_prob, entropy, high, total = combine_statistics([Partial(*rank.unbind()) for rank in gathered], temperature)
        per_row = temperature if isinstance(temperature, torch.Tensor) else None
        ctx.save_for_backward(logits, labels, per_row, high, total, log_prob)
        ctx.temperature = None if per_row is not None else temperature
        ctx.first_label, ctx.overwrite = first_label, overwrite
        ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_prob: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, labels, per_row, high, total, log_prob = ctx.saved_tensors
        temperature = ctx.temperature if per_row is None else per_row
        out = logits.detach() if ctx.overwrite else torch.empty_like(logits, memory_format=torch.contiguous_format)
        backend(logits).gradient(
            logits, labels, temperature, high, total, log_prob, grad_log_prob, out, first_label=ctx.first_label
        )
        if ctx.overwrite:
            torch.autograd.graph.increment_version(logits)
        return out, None, None, None, None, None


def sharded_logprob_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    first_label: int,
    group: dist.ProcessGroup | None = None,
    inplace_backward: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`gtpo_verl.entropy.logprob_entropy`, for logits split by vocabulary over the ranks of ``group``.

    One all-gather of four numbers per token; the backward needs no communication: each rank's gradient is that of
    its own columns, for a loss that every rank computes alike from ``log_prob``.

    Args:
        logits: ``[..., V_shard]``, this rank's columns; shards need not be of one size, nor hold the label.
        labels: ``[...]``, integers in the whole vocabulary, the same on every rank.
        temperature: as there.
        first_label: vocabulary index of this rank's first column.
        group: process group of the shards (default: the world).
        inplace_backward: as there.

    Raises:
        TypeError, ValueError: as there.
    """
    temperature = check(logits, labels, temperature)
    overwrite = inplace_backward and logits.requires_grad and may_overwrite(logits)
    return _ShardedLogProb.apply(logits, labels, temperature, first_label, group, overwrite)
