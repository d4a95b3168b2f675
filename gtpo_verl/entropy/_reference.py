"""The same statistics in plain PyTorch: the reference of the kernels, and the path of devices without Triton.

Works in fp32 (float64 for float64 logits), a block of rows at a time, so that the workspace is a few rows and
not a second tensor of logits. The quantities are those of :mod:`gtpo_verl.entropy._kernels`.
"""

from collections.abc import Iterator

import torch

# Elements of one block. Large enough to occupy every core, small enough to stay in the cache between operations.
BLOCK_ELEMENTS = 1 << 18
FLOOR = -700.0  # e^-700 is 0 in fp32, and 0 * -700 is 0 where 0 * -inf is NaN


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp32 for every floating type but float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _blocks(n: int, vocabulary: int) -> Iterator[slice]:
    rows = max(1, BLOCK_ELEMENTS * torch.get_num_threads() // max(vocabulary, 1))
    for start in range(0, n, rows):
        yield slice(start, min(start + rows, n))


def _inverse(temperature: float | torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """1 / T per row [n, 1], or None for a number (which :func:`_scale` then multiplies by)."""
    if not isinstance(temperature, torch.Tensor):
        return None
    t = temperature.reshape(-1, 1).to(dtype)
    return torch.where(t > 0, t.reciprocal(), torch.nan)


def statistics(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    *,
    first_label: int = 0,
    partial: bool = False,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, ...]:
    """As :func:`gtpo_verl.entropy._kernels.statistics`."""
    vocabulary = logits.shape[-1]
    dtype = compute_dtype(logits.dtype)
    rows = logits.reshape(-1, vocabulary)
    flat = labels.reshape(-1).long() - first_label
    n = flat.numel()
    inverse = _inverse(temperature, dtype)
    maximum, others, u, label_logit = torch.empty((4, n), dtype=dtype, device=logits.device).unbind()
    for block in _blocks(n, vocabulary):
        x = rows[block].to(dtype)
        high, at = x.max(-1, keepdim=True)
        d = x - high
        d *= 1.0 / temperature if inverse is None else inverse[block]
        e = d.exp()
        d.clamp_(min=FLOOR)
        u[block] = torch.linalg.vecdot(e, d)
        e.scatter_(-1, at, 0.0)  # one occurrence of the maximum is the 1 of 1 + others
        others[block] = torch.where(high.isfinite(), e.sum(-1, keepdim=True), torch.nan).squeeze(-1)
        maximum[block] = high.squeeze(-1)
        label = flat[block, None]
        here = (label >= 0) & (label < vocabulary)
        picked = x.gather(-1, label.clamp(0, vocabulary - 1))
        label_logit[block] = torch.where(here, picked, torch.nan).squeeze(-1)
    if partial:
        return _into(out, labels, (maximum, others, u, label_logit))
    log_sum = others.log1p()
    label_drop = label_logit - maximum
    log_prob = label_drop * (1.0 / temperature if inverse is None else inverse.squeeze(-1)) - log_sum
    entropy = log_sum - u / (1.0 + others)
    return _into(out, labels, (log_prob, entropy, maximum, others))


def _into(
    out: tuple[torch.Tensor, ...] | None, labels: torch.Tensor, values: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    shaped = tuple(value.view(labels.shape) for value in values)
    if out is None:
        return shaped
    for to, value in zip(out, shaped, strict=True):
        to.copy_(value)
    return out


def gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    max_logit: torch.Tensor,
    others: torch.Tensor,
    log_prob: torch.Tensor,
    grad_log_prob: torch.Tensor,
    out: torch.Tensor,
    *,
    first_label: int = 0,
) -> None:
    """As :func:`gtpo_verl.entropy._kernels.gradient`."""
    vocabulary = logits.shape[-1]
    dtype = compute_dtype(logits.dtype)
    rows = logits.reshape(-1, vocabulary)
    target = rows if out.data_ptr() == logits.data_ptr() and rows.data_ptr() == logits.data_ptr() else None
    if target is None:
        viewable = out.dim() == 2 or out.is_contiguous()
        target = out.view(-1, vocabulary) if viewable else torch.empty_like(rows, dtype=out.dtype)
    flat = labels.reshape(-1, 1).long() - first_label
    inverse = _inverse(temperature, dtype)
    log_sum = others.reshape(-1, 1).log1p()
    high = max_logit.reshape(-1, 1)
    g = grad_log_prob.reshape(-1, 1).to(dtype)
    g = g * (1.0 / temperature if inverse is None else inverse)
    at_label = -torch.expm1(log_prob.reshape(-1, 1)) * g
    for block in _blocks(flat.numel(), vocabulary):
        p = rows[block].to(dtype) - high[block]
        p *= 1.0 / temperature if inverse is None else inverse[block]
        p -= log_sum[block]
        p.exp_()
        p *= -g[block]
        label = flat[block]
        here = (label >= 0) & (label < vocabulary)
        label = label.clamp(0, vocabulary - 1)
        p.scatter_(-1, label, torch.where(here, at_label[block], p.gather(-1, label)))
        # Rows without a gradient (prompts, padding) are 0 whatever their logits are.
        p.masked_fill_(g[block] == 0, 0.0)
        target[block] = p.to(out.dtype)
    if target.data_ptr() != out.data_ptr():
        out.copy_(target.view(out.shape))
