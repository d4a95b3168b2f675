"""Log-probability and entropy from hidden states and the LM head's weight, without all the logits."""

from collections.abc import Iterator
from typing import Any

import torch

from gtpo_verl.entropy.functional import backend, check_labels, check_temperature

# Bytes of the buffer of logits that is reused for every chunk of tokens.
BUFFER_BYTES = 640 << 20
_HALF = (torch.bfloat16, torch.float16)


def _logits_dtype(hidden: torch.Tensor, logits_dtype: torch.dtype | None) -> torch.dtype:
    if logits_dtype is None:
        return hidden.dtype if hidden.dtype == torch.float64 else torch.float32
    if logits_dtype not in (torch.float32, hidden.dtype):
        raise ValueError(f"logits_dtype must be float32 or the hidden states' {hidden.dtype}, got {logits_dtype}")
    return logits_dtype


def _check(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, temperature: float | torch.Tensor
) -> float | torch.Tensor:
    if not hidden.is_floating_point():
        raise TypeError(f"hidden states must be floating-point, got {hidden.dtype}")
    if weight.dtype != hidden.dtype:
        raise TypeError(f"hidden states are {hidden.dtype}, the weight {weight.dtype}")
    if weight.dim() != 2 or hidden.dim() == 0 or hidden.shape[-1] != weight.shape[1] or weight.shape[0] == 0:
        raise ValueError(
            f"hidden states [..., E] and weight [V, E] expected, got {tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    check_labels(hidden.shape[:-1], hidden.device, labels)
    return check_temperature(temperature, labels)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out = a @ b``, rounded once, to ``out``'s dtype: half operands with an fp32 result stay on the tensor cores."""
    if out.dtype == a.dtype:
        torch.mm(a, b, out=out)
    elif a.is_cuda:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def _add_product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """``out += a @ b`` with the sum in ``out``'s dtype."""
    if out.dtype == a.dtype:
        out.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        out.addmm_(a.to(out.dtype), b.to(out.dtype))


def _token_chunks(n: int, vocabulary: int, dtype: torch.dtype, chunk_tokens: int | None) -> tuple[int, Iterator[slice]]:
    if chunk_tokens is None:
        # A multiple of 128 rows is a whole number of matmul tiles.
        chunk_tokens = max(128, BUFFER_BYTES // (vocabulary * dtype.itemsize) // 128 * 128)
    elif chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be positive, got {chunk_tokens}")
    size = min(chunk_tokens, max(n, 1))
    return size, (slice(i, min(i + size, n)) for i in range(0, n, size))


def _rows_of(temperature: float | torch.Tensor, chunk: slice) -> float | torch.Tensor:
    return temperature[chunk] if isinstance(temperature, torch.Tensor) else temperature


def _forward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    logits_dtype: torch.dtype,
    chunk_tokens: int | None,
) -> tuple[torch.Tensor, ...]:
    """``(log_prob, entropy, max, others)`` [n] for hidden [n, E]."""
    n, vocabulary = hidden.shape[0], weight.shape[0]
    size, chunks = _token_chunks(n, vocabulary, logits_dtype, chunk_tokens)
    buffer = torch.empty(size, vocabulary, dtype=logits_dtype, device=hidden.device)
    results = torch.empty(
        4, n, dtype=torch.float64 if logits_dtype == torch.float64 else torch.float32, device=hidden.device
    )
    transposed = weight.t()
    if not hidden.is_cuda and logits_dtype != weight.dtype:
        transposed = transposed.to(logits_dtype)  # once, not once a chunk
    for chunk in chunks:
        logits = buffer[: chunk.stop - chunk.start]
        _multiply(hidden[chunk], transposed, logits)
        part = backend(logits).statistics(logits, labels[chunk], _rows_of(temperature, chunk))
        for to, result in zip(results, part, strict=True):
            to[chunk] = result
    return results.unbind()


class _LinearLogProbEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        temperature: float | torch.Tensor,
        logits_dtype: torch.dtype,
        chunk_tokens: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_prob, entropy, high, others = _forward(hidden, weight, labels, temperature, logits_dtype, chunk_tokens)
        per_row = temperature if isinstance(temperature, torch.Tensor) else None
        ctx.save_for_backward(hidden, weight, labels, per_row, log_prob, high, others)
        ctx.temperature = None if per_row is not None else temperature
        ctx.logits_dtype = logits_dtype
        ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_prob: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, labels, per_row, log_prob, high, others = ctx.saved_tensors
        temperature = ctx.temperature if per_row is None else per_row
        with torch.autocast(hidden.device.type, enabled=False):
            grad_hidden, grad_weight = _backward(
                hidden,
                weight,
                labels,
                temperature,
                ctx.logits_dtype,
                (high, others, log_prob, grad_log_prob.contiguous()),
                ctx.needs_input_grad[:2],
            )
        return grad_hidden, grad_weight, None, None, None, None


def _backward(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    logits_dtype: torch.dtype,
    saved: tuple[torch.Tensor, ...],
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of hidden and weight, recomputing the logits a chunk of the *vocabulary* at a time.

    By vocabulary, each row of the weight's gradient is one matmul over all tokens, rounded once; by tokens it would be
    a sum over chunks that needs an fp32 copy of the whole weight. Only the hidden states' gradient is then a sum, in
    fp32.
    """
    n, width = hidden.shape
    vocabulary = weight.shape[0]
    high, others, log_prob, grad_log_prob = saved
    per_column = n * (logits_dtype.itemsize + (0 if logits_dtype == hidden.dtype else hidden.dtype.itemsize))
    columns = min(vocabulary, max(256, BUFFER_BYTES // max(per_column, 1) // 256 * 256))
    logits_buffer = torch.empty(n * columns, dtype=logits_dtype, device=hidden.device)
    grad_buffer = logits_buffer
    if logits_dtype != hidden.dtype:
        grad_buffer = torch.empty(n * columns, dtype=hidden.dtype, device=hidden.device)
    sum_dtype = torch.float32 if hidden.dtype in _HALF else hidden.dtype
    grad_hidden = torch.zeros(n, width, dtype=sum_dtype, device=hidden.device) if needs[0] else None
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else None
    for start in range(0, vocabulary, columns):
        rows = slice(start, min(start + columns, vocabulary))
        shape = (n, rows.stop - start)
        logits = logits_buffer[: shape[0] * shape[1]].view(shape)
        grad_logits = grad_buffer[: shape[0] * shape[1]].view(shape)
        _multiply(hidden, weight[rows].t(), logits)
        backend(logits).gradient(
            logits, labels, temperature, high, others, log_prob, grad_log_prob, grad_logits, first_label=start
        )
        if grad_weight is not None:
            torch.mm(grad_logits.t(), hidden, out=grad_weight[rows])
        if grad_hidden is not None:
            _add_product(grad_hidden, grad_logits, weight[rows])
    return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight


def _linear(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    logits_dtype: torch.dtype | None,
    chunk_tokens: int | None,
    gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    temperature = _check(hidden, weight, labels, temperature)
    dtype = _logits_dtype(hidden, logits_dtype)
    rows = hidden.reshape(-1, hidden.shape[-1])
    flat = labels.reshape(-1)
    if isinstance(temperature, torch.Tensor):
        temperature = temperature.reshape(-1)
    # Under autocast, mm would round the logits again.
    with (
        torch.set_grad_enabled(gradient and torch.is_grad_enabled()),
        torch.autocast(hidden.device.type, enabled=False),
    ):
        if gradient:
            log_prob, entropy = _LinearLogProbEntropy.apply(rows, weight, flat, temperature, dtype, chunk_tokens)
        else:
            log_prob, entropy, _, _ = _forward(rows, weight, flat, temperature, dtype, chunk_tokens)
    return log_prob.view(labels.shape), entropy.view(labels.shape)


def linear_logprob_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    logits_dtype: torch.dtype | None = None,
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy under ``softmax(hidden @ weight.T / T)``, without a gradient.

    The matmul runs in chunks of tokens into one reused buffer, each chunk then read once by the pass of
    :func:`gtpo_verl.entropy.logprob_entropy`; all logits never exist.

    Args:
        hidden: ``[..., E]``, bf16, fp16, fp32 or float64.
        weight: ``[V, E]``, the LM head (or tied embedding), same dtype.
        labels: ``[...]``, integers.
        temperature: a positive number, or a tensor ``[...]``.
        logits_dtype: fp32 (default) keeps the matmul's own accumulation; the hidden states' dtype is faster and rounds
            the logits (an error of about 2^-9 of the largest logit for bf16).
        chunk_tokens: tokens a chunk; by default as many as fit a buffer of 640 MiB.

    Returns:
        ``(log_prob, entropy)``, each ``[...]`` fp32 (float64 for float64), as in
        :func:`gtpo_verl.entropy.logprob_entropy`.

    Raises:
        TypeError: dtypes that are not floating-point (hidden, weight), not equal, or not integers (labels).
        ValueError: shapes, devices, temperature, ``logits_dtype`` or ``chunk_tokens`` that do not fit.
    """
    return _linear(hidden, weight, labels, temperature, logits_dtype, chunk_tokens, gradient=False)


def linear_logprob(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    logits_dtype: torch.dtype | None = None,
    chunk_tokens: int | None = None,
) -> torch.Tensor:
    """Log-probability of :func:`linear_logprob_entropy`, bit for bit, with gradients for ``hidden`` and ``weight``.

    The backward recomputes the logits in chunks of the vocabulary, so one more matmul is spent and no
    tokens-by-vocabulary tensor is kept. The gradient of ``weight`` is skipped when it is frozen. Arguments and errors
    as there; give both calls the same ``logits_dtype`` and ``chunk_tokens``.
    """
    return _linear(hidden, weight, labels, temperature, logits_dtype, chunk_tokens, gradient=True)[0]
