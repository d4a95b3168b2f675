"""Log-probability and entropy of given logits, with the gradient of the log-probability."""

import math
from types import ModuleType
from typing import Any

import torch

from gtpo_verl.entropy import _reference

try:
    from gtpo_verl.entropy import _kernels
except ImportError:  # no Triton on this machine
    _kernels = None  # type: ignore[assignment]

_KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def backend(logits: torch.Tensor) -> ModuleType:
    """The module whose ``statistics`` and ``gradient`` serve these logits: Triton on a GPU, else plain PyTorch."""
    if _kernels is not None and logits.dtype in _KERNEL_DTYPES and (logits.is_cuda or _kernels.INTERPRETED):
        return _kernels
    return _reference


def check(logits: torch.Tensor, labels: torch.Tensor, temperature: float | torch.Tensor) -> float | torch.Tensor:
    """Validates what can be validated without reading device memory; returns the temperature to use."""
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating-point, got {logits.dtype}")
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits need a non-empty vocabulary dimension, got shape {tuple(logits.shape)}")
    check_labels(logits.shape[:-1], logits.device, labels)
    return check_temperature(temperature, labels, logits.dtype)


def check_labels(leading: torch.Size, device: torch.device, labels: torch.Tensor) -> None:
    if labels.dtype.is_floating_point or labels.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != leading:
        raise ValueError(f"labels have shape {tuple(labels.shape)}, expected {tuple(leading)}")
    if labels.device != device:
        raise ValueError(f"labels are on {labels.device}, the logits on {device}")


def check_temperature(
    temperature: float | torch.Tensor, labels: torch.Tensor, dtype: torch.dtype
) -> float | torch.Tensor:
    """A tensor becomes float64 for logits of that ``dtype`` and else fp32, which is all that the kernels take."""
    if isinstance(temperature, torch.Tensor):
        if temperature.shape != labels.shape:
            raise ValueError(f"temperature has shape {tuple(temperature.shape)}, expected {tuple(labels.shape)}")
        if temperature.requires_grad:
            raise ValueError("temperature carries no gradient: detach it")
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        return temperature.to(device=labels.device, dtype=dtype)
    temperature = float(temperature)
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    return temperature


def may_overwrite(logits: torch.Tensor) -> bool:
    """Whether the gradient may take the logits' memory.

    No where the memory belongs to a leaf (also through a view), where the caller retains the logits' gradient,
    where rows overlap (an expanded tensor), or where the operation that made the logits saved its result for its own
    backward (``tanh``, ``softmax``). Some other consumer may have saved them too: the version counter, raised on
    writing, then makes its backward fail with PyTorch's own message.
    """
    for tensor in (logits, logits._base if logits._is_view() else None):
        if tensor is None:
            continue
        if tensor.is_leaf or tensor.retains_grad:
            return False
        # Only the result: reading other saved tensors would run the hooks that offload or recompute activations.
        saved = getattr(tensor.grad_fn, "_saved_result", None)
        if isinstance(saved, torch.Tensor) and _storage(saved) == _storage(logits):
            return False
    return not any(size > 1 and stride == 0 for size, stride in zip(logits.shape, logits.stride(), strict=True))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _LogProbEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        temperature: float | torch.Tensor,
        overwrite: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_prob, entropy, max_logit, others = backend(logits).statistics(logits, labels, temperature)
        per_row = temperature if isinstance(temperature, torch.Tensor) else None
        ctx.save_for_backward(logits, labels, per_row, max_logit, others, log_prob)
        ctx.temperature = None if per_row is not None else temperature
        ctx.overwrite = overwrite
        ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_prob: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, labels, per_row, max_logit, others, log_prob = ctx.saved_tensors
        temperature = ctx.temperature if per_row is None else per_row
        out = logits.detach() if ctx.overwrite else torch.empty_like(logits, memory_format=torch.contiguous_format)
        backend(logits).gradient(logits, labels, temperature, max_logit, others, log_prob, grad_log_prob, out)
        if ctx.overwrite:
            torch.autograd.graph.increment_version(logits)
        return out, None, None, None


def logprob_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    inplace_backward: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of the labels and entropy of the distribution, in one pass over the logits.

    With ``p = softmax(logits / T)``: ``log p[label]`` and ``H = -sum_v p_v log p_v`` in nats, ``p log p = 0`` at
    ``p = 0``. Always ``log_prob <= 0`` and ``entropy >= 0``; the entropy keeps its relative accuracy near
    certainty: ``|H - H_exact| <= 2e-3 (H_exact + 1e-6)``.

    Args:
        logits: ``[..., V]``, bf16, fp16 or fp32 (float64 in plain PyTorch), any strides, ``-inf`` allowed.
        labels: ``[...]``, integers.
        temperature: a positive number, or a tensor ``[...]`` with one temperature per label. Folded into the
            pass: no scaled copy of the logits exists.
        inplace_backward: write the gradient over the logits where :func:`may_overwrite` finds that safe, so that no
            second vocabulary-sized tensor lives. The logits' values are then gone after ``backward``. Set it to
            False if the logits are read later, or saved by another operation's backward (which otherwise fails
            loudly, by PyTorch's version counter).

    Returns:
        ``(log_prob, entropy)``, each ``[...]`` in fp32 (float64 for float64 logits). ``log_prob`` carries the
        gradient of the logits; ``entropy`` never carries one. NaN where no finite answer exists: a row with a NaN
        or ``+inf``, a row of only ``-inf``, a tensor temperature that is not positive; ``log_prob`` also where the
        label is outside ``[0, V)``.

    Raises:
        TypeError: logits not floating-point, labels not integers.
        ValueError: shapes or devices that do not match, or a number for temperature that is not positive.
    """
    temperature = check(logits, labels, temperature)
    if not (torch.is_grad_enabled() and logits.requires_grad):
        log_prob, entropy, _, _ = backend(logits).statistics(logits, labels, temperature)
        return log_prob, entropy
    return _LogProbEntropy.apply(logits, labels, temperature, inplace_backward and may_overwrite(logits))


def logprob(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    inplace_backward: bool = True,
) -> torch.Tensor:
    """Log-probability of the labels: the first result of :func:`logprob_entropy`, bit for bit, with its gradient.

    The gradient with respect to the logits is ``(1{v = label} - p_v) / T``, computed from the saved row maximum and
    sum; ``1 - p`` at the label is taken without cancellation. Arguments, results and errors as there.
    """
    return logprob_entropy(logits, labels, temperature, inplace_backward=inplace_backward)[0]
