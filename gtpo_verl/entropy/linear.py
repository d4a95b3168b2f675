"""Log-probability and entropy from hidden states and the LM head's weight, without all the logits."""

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gtpo_verl.entropy.functional import backend, check_labels, check_temperature
from gtpo_verl.entropy.shards import Partial, combine_statistics

try:
    from gtpo_verl.entropy import _fused
except ImportError:  # no Triton on this machine, or one without tensor descriptors
    _fused = None  # type: ignore[assignment]

# Bytes that the buffers of logits, and of their gradient, may take together.
BUFFER_BYTES = 1 << 30
# Elements of the part of the weight that makes one chunk of fp32 logits on a GPU: 16,896 columns at a width of 5,120.
# With 2,048 tokens that is a whole number of waves of matmul tiles on 132 multiprocessors, and much of the chunk is
# still cached when it is read. Narrower models get more columns, or their chunks would be shorter than their launches.
PART_ELEMENTS = 16896 * 5120
TOKENS = 2048
# The widest hidden states at which a matmul that keeps its logits was measured: faster than one that writes them.
FUSED_WIDTH = 5120
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
    return check_temperature(temperature, labels, hidden.dtype)


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


def _equal_parts(vocabulary: int, parts: int) -> int:
    """Columns of a part, a multiple of the 256 of a matmul tile, so that the last part is not a small remainder."""
    return min(vocabulary, -(-vocabulary // (256 * max(parts, 1))) * 256)


def _check_chunk(chunk_tokens: int | None) -> None:
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be positive, got {chunk_tokens}")


def _chunk_shape(n: int, vocabulary: int, parts: int, dtype: torch.dtype, chunk_tokens: int | None) -> tuple[int, int]:
    """(tokens, columns) of a chunk of logits."""
    columns = _equal_parts(vocabulary, parts)
    _check_chunk(chunk_tokens)
    if chunk_tokens is None:
        fitting = BUFFER_BYTES // (columns * dtype.itemsize)
        # Powers of two are whole numbers of matmul tiles, and of waves of them.
        chunk_tokens = max(128, min(TOKENS, 1 << max(fitting, 1).bit_length() - 1))
    return min(chunk_tokens, max(n, 1)), columns


def _padded(columns: int) -> int:
    """Elements from one row of a buffer to the next: rows that start on a cache line are what matmuls write fastest."""
    return -(-columns // 64) * 64


def _slices(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


@functools.cache
def _side_streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(device), torch.cuda.Stream(device)


@contextmanager
def _alternating(device: torch.device, buffer: Callable[[], torch.Tensor]) -> Iterator[Iterator[torch.Tensor]]:
    """Buffers to work in, one after the other, each in a stream of its own, so that the end of one chunk's matmul
    and its pass run beside the start of the next chunk's. Joined with the current stream at the end."""
    if device.type != "cuda":
        yield itertools.repeat(buffer())
        return
    current, streams = torch.cuda.current_stream(device), _side_streams(device)
    buffers = [buffer() for _ in streams]  # allocated in the current stream, which waits before they are freed
    for stream in streams:
        stream.wait_stream(current)

    def turns() -> Iterator[torch.Tensor]:
        for stream, memory in itertools.cycle(zip(streams, buffers, strict=True)):
            with torch.cuda.stream(stream):
                yield memory

    working = turns()
    try:
        yield working
    finally:
        working.close()  # type: ignore[attr-defined]
        for stream in streams:
            current.wait_stream(stream)


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
    fused = _fused is not None and logits_dtype == torch.float32 and hidden.shape[1] <= FUSED_WIDTH
    if fused and n > 0 and _fused.serves(hidden, weight):
        out = torch.empty(4, n, dtype=torch.float32, device=hidden.device).unbind()
        _check_chunk(chunk_tokens)
        return _fused.statistics(hidden, weight, labels.contiguous(), temperature, out, chunk_tokens)
    parts = -(-weight.numel() // PART_ELEMENTS) if logits_dtype == torch.float32 else 1
    tokens, columns = _chunk_shape(n, vocabulary, parts, logits_dtype, chunk_tokens)
    if not hidden.is_cuda and logits_dtype != weight.dtype:
        weight = weight.to(logits_dtype)  # once, not once a chunk
    chunks, columns_of = _slices(n, tokens), _slices(vocabulary, columns)
    result_dtype = torch.float64 if logits_dtype == torch.float64 else torch.float32
    results = torch.empty(len(columns_of), 4, n, dtype=result_dtype, device=hidden.device)

    def logits_of(buffer: torch.Tensor, chunk: slice, part: slice) -> torch.Tensor:
        logits = buffer[: chunk.stop - chunk.start, : part.stop - part.start]
        _multiply(hidden[chunk], weight[part].t(), logits)
        return logits

    def buffer() -> torch.Tensor:
        return torch.empty(tokens, _padded(columns), dtype=logits_dtype, device=hidden.device)

    if len(columns_of) == 1:
        memory = buffer()
        for chunk in chunks:
            logits = logits_of(memory, chunk, columns_of[0])
            backend(logits).statistics(
                logits, labels[chunk], _rows_of(temperature, chunk), out=results[0, :, chunk].unbind()
            )
        return results[0].unbind()
    with _alternating(hidden.device, buffer) as buffers:
        for chunk in chunks:
            for part, out in zip(columns_of, results, strict=True):
                logits = logits_of(next(buffers), chunk, part)
                backend(logits).statistics(
                    logits,
                    labels[chunk],
                    _rows_of(temperature, chunk),
                    first_label=part.start,
                    partial=True,
                    out=out[:, chunk].unbind(),
                )
    return combine_statistics([Partial(*part.unbind()) for part in results], temperature)


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
    columns = _equal_parts(vocabulary, -(-vocabulary * per_column // BUFFER_BYTES))
    logits_buffer = torch.empty(n, _padded(columns), dtype=logits_dtype, device=hidden.device)
    grad_buffer = logits_buffer
    if logits_dtype != hidden.dtype:
        grad_buffer = torch.empty(n, _padded(columns), dtype=hidden.dtype, device=hidden.device)
    sum_dtype = torch.float32 if hidden.dtype in _HALF else hidden.dtype
    grad_hidden = torch.zeros(n, width, dtype=sum_dtype, device=hidden.device) if needs[0] else None
    grad_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else None
    for start in range(0, vocabulary, columns):
        rows = slice(start, min(start + columns, vocabulary))
        logits = logits_buffer[:, : rows.stop - start]
        grad_logits = grad_buffer[:, : rows.stop - start]
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

    The matmul runs in chunks into reused buffers, each chunk then read once by the pass of
    :func:`gtpo_verl.entropy.logprob_entropy`; all logits never exist. With 16-bit hidden states of up to 5,120 features
    and fp32 logits on a Hopper GPU, the matmul takes the statistics itself, and no logits exist.

    Args:
        hidden: ``[..., E]``, bf16, fp16, fp32 or float64.
        weight: ``[V, E]``, the LM head (or tied embedding), same dtype.
        labels: ``[...]``, integers.
        temperature: a positive number, or a tensor ``[...]``.
        logits_dtype: fp32 (default) keeps the matmul's own accumulation; the hidden states' dtype is faster and rounds
            the logits (an error of about 2^-9 of the largest logit for bf16).
        chunk_tokens: tokens a chunk; by default up to 2,048, in buffers of at most 1 GiB.

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
