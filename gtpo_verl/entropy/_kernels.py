"""Triton kernels: one pass over each row of logits for log-probability and entropy, and its gradient.

What a row's statistics are. With ``x`` the row, ``M`` its maximum, ``T`` the temperature and
``d_v = (x_v - M) / T <= 0``, the kernels carry

    others = sum of e^(d_v) over every v except one occurrence of the maximum
    u      = sum of e^(d_v) d_v

so that ``log sum e^(d_v) = log1p(others)``, ``log p(label) = d_label - log1p(others)`` and
``H = log1p(others) - u / (1 + others)``. Neither term of H is negative, so nothing cancels: this keeps
the entropy of a near-certain token, where ``others`` is far below the rounding of ``1 + others``.

Each thread carries the statistics of its own columns; threads are merged once, after the row. Exponents
are in base 2 inside the kernels (``c = log2(e) / T``), which is what the hardware computes.
"""

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Lowest exponent (base 2) that is evaluated: 2^-1000 is 0 in fp32, and 0 * -1000 is 0 where 0 * -inf is NaN.
FLOOR = tl.constexpr(-1000.0)
LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
INTERPRETED = bool(triton.knobs.runtime.interpret)

# Triton compiles a kernel anew for an integer that is 1 or divisible by 16, and for every pointer that starts on 16
# bytes. Where the number of tokens decides that, micro-batches would share no kernel, and nothing is gained: these
# are read once a row.
_PER_CALL = ("first_label", "inner", "shift")
_PER_ROW = (
    "label_ptr",
    "temperature_ptr",
    "log_prob_ptr",
    "entropy_ptr",
    "max_ptr",
    "others_ptr",
    "u_ptr",
    "label_logit_ptr",
    "grad_log_prob_ptr",
)


@triton.jit
def _exp2(x, FAST: tl.constexpr):
    # The flushing form is one instruction; the other spends three more on results below 2^-126.
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@triton.jit
def _log1p(a):
    # log(1 + a) loses a small a in the sum; 2 atanh(a / (2 + a)) does not, and its series is short for a <= 1/2.
    z = a / (2.0 + a)
    w = z * z
    series = 2.0 * z * (1.0 + w * (1.0 / 3 + w * (1.0 / 5 + w * (1.0 / 7 + w * (1.0 / 9 + w * (1.0 / 11))))))
    return tl.where(a > 0.5, tl.log(1.0 + a), series)


@triton.jit
def _one_minus_exp(x):
    # 1 - e^x for x <= 0 without cancellation near 0 (a label that is almost certain).
    series = 1.0 / 5040
    series = 1.0 / 720 + x * series
    series = 1.0 / 120 + x * series
    series = 1.0 / 24 + x * series
    series = 1.0 / 6 + x * series
    series = 0.5 + x * series
    series = -x * (1.0 + x * series)
    return tl.where(x < -0.5, 1.0 - tl.exp(x), series)


@triton.jit
def _offset(column, stride_v, UNIT: tl.constexpr):
    # A row of one stride stays below 2^31 elements; a column's distance need not.
    if UNIT:
        return column
    else:
        return column.to(tl.int64) * stride_v


@triton.jit
def _block(row, start, column, stride_v, UNIT: tl.constexpr):
    # The scalar first: what a thread adds to it is the same for every block of a row.
    if UNIT:
        return row + start + column
    else:
        return row + _offset(start + column, stride_v, UNIT)


@triton.jit
def _drop(x, high, c, FAST: tl.constexpr):
    """(e, d): d = (x - high) c, never below FLOOR, and e = 2^d. A NaN stays a NaN."""
    d = tl.maximum((x - high) * c, FLOOR, propagate_nan=tl.PropagateNan.ALL)
    return _exp2(d, FAST), d


@triton.jit
def _larger(a, b, FAST: tl.constexpr):
    # Two 16-bit values share a register, and one instruction takes both pairs; Triton itself compares them one by one.
    if FAST and a.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif FAST and a.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "max.NaN.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _smaller(a, b, FAST: tl.constexpr):
    if FAST and a.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "min.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    elif FAST and a.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            "min.NaN.f16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.float16, is_pure=True, pack=2
        )
    else:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _widen(x, FAST: tl.constexpr):
    # The same here: an instruction a value, where Triton's own conversion takes the upper half of a register out first.
    if FAST and x.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=2
        )
    else:
        return x.to(tl.float32)


@triton.jit
def _round(x, FAST: tl.constexpr):
    """(winners, losers), each [lanes, n / 2]: the columns of one half of x [lanes, n >= 4] against the other's."""
    a, b = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
    return _larger(a, b, FAST), _smaller(a, b, FAST)


@triton.jit
def _add(x, high, c, others, u, FAST: tl.constexpr):
    """Adds the columns x [lanes, n] to (others, u)."""
    e, d = _drop(_widen(x, FAST), high[:, None], c, FAST)
    return others + tl.sum(e, 1), u + tl.sum(e * d, 1)


@triton.jit
def _absorb(x, m, others, u, c, FAST: tl.constexpr):
    """Adds the columns x [lanes, 4 or 8] to each lane's (m, others, u) [lanes].

    A tournament: every column but one loses a match, the last one against m, and what has lost is added. So exactly one
    occurrence of the maximum is left out of others, without a comparison of each column with the maximum.
    """
    winners, losers = _round(x, FAST)
    if x.shape[1] == 8:
        winners, few = _round(winners, FAST)
    a, b = tl.split(_widen(winners, FAST))
    best, second = _larger(a, b, FAST), _smaller(a, b, FAST)
    new, last = _larger(m, best, FAST), _smaller(m, best, FAST)
    # A lane that has seen only -inf has no maximum to subtract (-inf - -inf is NaN).
    high = tl.maximum(new, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    e, d = _drop(last, high, c, FAST)
    stays = m == new
    f = tl.where(stays, 1.0, e)
    u = f * (u + tl.where(stays, 0.0, d) * others) + e * d
    others = f * others + e
    e, d = _drop(second, high, c, FAST)
    others, u = others + e, u + e * d
    if x.shape[1] == 8:
        others, u = _add(few, high, c, others, u, FAST)
    others, u = _add(losers, high, c, others, u, FAST)
    return new, others, u


@triton.jit
def _head(start, V, WIDTH: tl.constexpr, UNIT: tl.constexpr, EDGES: tl.constexpr):
    """Columns before the first one whose address is a multiple of WIDTH elements; the row starts at element start."""
    if EDGES and UNIT:
        return tl.minimum((WIDTH - start % WIDTH) % WIDTH, V).to(tl.int32)
    else:
        return 0


@triton.jit
def _row_statistics(
    row,
    body,
    head,
    V,
    stride_v,
    c,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    FAST: tl.constexpr,
):
    """(maximum, others, u) of one row of V logits; the maximum in the logits' units, u in base 2.

    body is the row from its column head on, where whole accesses start.
    """
    lane = tl.arange(0, LANES)[:, None]
    column = lane * WIDTH + tl.arange(0, WIDTH)[None, :]
    m = tl.full((LANES,), float("-inf"), tl.float32)
    vectors = (V - head) // WIDTH
    if EDGES:  # fewer than WIDTH columns at either end: one a lane, to begin with
        one = tl.arange(0, LANES)
        at = tl.where(one < head, one, one + vectors * WIDTH)
        m = tl.load(row + _offset(at, stride_v, UNIT), mask=at < V, other=float("-inf")).to(tl.float32)
    others = tl.zeros((LANES,), tl.float32)
    u = tl.zeros((LANES,), tl.float32)
    whole = vectors - vectors % LANES  # masks cost instructions: only the last block has one
    for start in range(0, whole * WIDTH, LANES * WIDTH):
        x = tl.load(_block(body, start, column, stride_v, UNIT))
        m, others, u = _absorb(x, m, others, u, c, FAST)
    if whole < vectors:  # one mask for all of a lane's columns, which a lane then still reads at once
        rest = _block(body, whole * WIDTH, column, stride_v, UNIT)
        x = tl.load(rest, mask=whole + lane < vectors, other=float("-inf"))
        m, others, u = _absorb(x, m, others, u, c, FAST)

    high = tl.max(m, 0)
    f, d = _drop(m, tl.where(high == float("-inf"), 0.0, high), c, FAST)
    top = d >= 0.0
    u = tl.sum(f * (u + d * (others + 1.0)), 0)
    others = tl.sum(tl.where(top, others, f * (others + 1.0)), 0) + (tl.sum(tl.where(top, 1.0, 0.0), 0) - 1.0)
    # All -inf has no distribution and +inf has no finite one. A NaN is in others and u by now, whatever the hardware's
    # maximum made of it.
    high = tl.where(others != others, float("nan"), high)
    invalid = (high == float("-inf")) | (high == float("inf"))
    return high, tl.where(invalid, float("nan"), others), tl.where(invalid, float("nan"), u)


@triton.jit
def _inverse_temperature(temperature_ptr, inverse_temperature, r, PER_ROW: tl.constexpr):
    if PER_ROW:
        t = tl.load(temperature_ptr + r)
        return tl.where(t > 0.0, 1.0 / t, float("nan"))
    else:
        return inverse_temperature


@triton.jit(do_not_specialize=_PER_CALL, do_not_specialize_on_alignment=_PER_ROW)
def _statistics_kernel(
    x_ptr,
    label_ptr,
    temperature_ptr,
    inverse_temperature,
    log_prob_ptr,
    entropy_ptr,
    max_ptr,
    others_ptr,
    u_ptr,
    label_logit_ptr,
    V,
    first_label,
    inner,
    shift,
    stride_o,
    stride_i,
    stride_v,
    PER_ROW: tl.constexpr,
    PARTIAL: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    FAST: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    start = (r // inner) * stride_o + (r % inner) * stride_i
    row = x_ptr + start
    head = _head(shift + start, V, WIDTH, UNIT, EDGES)
    body = row
    if EDGES:
        body = row + head
    if UNIT:  # said here: Triton itself sees only strides of 16, and forgets what is said of a function's argument
        body = tl.multiple_of(body, WIDTH * (x_ptr.dtype.element_ty.primitive_bitwidth // 8))
    inv_t = _inverse_temperature(temperature_ptr, inverse_temperature, r, PER_ROW)
    high, others, u = _row_statistics(row, body, head, V, stride_v, inv_t * LOG2E, LANES, WIDTH, UNIT, EDGES, FAST)
    u = u * LN2
    label = tl.load(label_ptr + r).to(tl.int64) - first_label
    here = (label >= 0) & (label < V)
    label_logit = tl.load(row + label * stride_v, mask=here, other=float("nan")).to(tl.float32)
    tl.store(max_ptr + r, high)
    tl.store(others_ptr + r, others)
    if PARTIAL:
        tl.store(u_ptr + r, u)
        tl.store(label_logit_ptr + r, label_logit)
    else:
        log_sum = _log1p(others)
        tl.store(log_prob_ptr + r, (label_logit - high) * inv_t - log_sum)
        tl.store(entropy_ptr + r, log_sum - u / (1.0 + others))


@triton.jit(do_not_specialize=_PER_CALL, do_not_specialize_on_alignment=_PER_ROW)
def _gradient_kernel(
    x_ptr,
    label_ptr,
    temperature_ptr,
    inverse_temperature,
    max_ptr,
    others_ptr,
    log_prob_ptr,
    grad_log_prob_ptr,
    out_ptr,
    V,
    first_label,
    inner,
    shift,
    stride_o,
    stride_i,
    stride_v,
    out_stride_o,
    out_stride_i,
    out_stride_v,
    PER_ROW: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    UNIT: tl.constexpr,
    EDGES: tl.constexpr,
    FAST: tl.constexpr,
):
    """out = (1{v = label} - p_v) g / T. out may be x: a thread writes only what it has read."""
    r = tl.program_id(0).to(tl.int64)
    start_of_row = (r // inner) * stride_o + (r % inner) * stride_i
    row = x_ptr + start_of_row
    out = out_ptr + (r // inner) * out_stride_o + (r % inner) * out_stride_i
    head = _head(shift + start_of_row, V, WIDTH, UNIT, EDGES)
    lane = tl.arange(0, LANES)[:, None]
    column = lane * WIDTH + tl.arange(0, WIDTH)[None, :]
    body, out_body = row, out
    if EDGES:
        body, out_body = row + head, out + head
    if UNIT:
        body = tl.multiple_of(body, WIDTH * (x_ptr.dtype.element_ty.primitive_bitwidth // 8))
        out_body = tl.multiple_of(out_body, WIDTH * (out_ptr.dtype.element_ty.primitive_bitwidth // 8))
    vectors = (V - head) // WIDTH
    at_edge = tl.arange(0, 16)  # fewer than WIDTH, at most 8, columns at either end
    at_edge = tl.where(at_edge < head, at_edge, at_edge + vectors * WIDTH)
    g = tl.load(grad_log_prob_ptr + r)
    if g == 0.0:  # a prompt or padding token: nothing to read
        for start in range(0, vectors, LANES):
            to = _block(out_body, start * WIDTH, column, out_stride_v, UNIT)
            zeros = tl.zeros((LANES, WIDTH), out_ptr.dtype.element_ty)
            tl.store(to, zeros, mask=start + lane < vectors)
        if EDGES:
            to = out + _offset(at_edge, out_stride_v, UNIT)
            tl.store(to, tl.zeros((16,), out_ptr.dtype.element_ty), mask=at_edge < V)
    else:
        if EDGES:  # asked for first and used last: a row need not wait for it
            edge = tl.load(row + _offset(at_edge, stride_v, UNIT), mask=at_edge < V, other=float("-inf"))
        inv_t = _inverse_temperature(temperature_ptr, inverse_temperature, r, PER_ROW)
        high = tl.load(max_ptr + r)
        log2_sum = _log1p(tl.load(others_ptr + r)) * LOG2E
        label = tl.load(label_ptr + r).to(tl.int64) - first_label
        label = tl.where((label >= 0) & (label < V), label, -1).to(tl.int32)
        at_label = _one_minus_exp(tl.load(log_prob_ptr + r)) * (g * inv_t)
        scale = -g * inv_t
        c = inv_t * LOG2E
        for start in range(0, vectors, LANES):
            inside = start + lane < vectors
            x = tl.load(_block(body, start * WIDTH, column, stride_v, UNIT), mask=inside, other=float("-inf"))
            p = _exp2((_widen(x, FAST) - high) * c - log2_sum, FAST)
            grad = tl.where(column == label - head - start * WIDTH, at_label, p * scale)
            to = _block(out_body, start * WIDTH, column, out_stride_v, UNIT)
            tl.store(to, grad.to(out_ptr.dtype.element_ty), mask=inside)
        if EDGES:
            p = _exp2((edge.to(tl.float32) - high) * c - log2_sum, FAST)
            grad = tl.where(at_edge == label, at_label, p * scale)
            to = out + _offset(at_edge, out_stride_v, UNIT)
            tl.store(to, grad.to(out_ptr.dtype.element_ty), mask=at_edge < V)


def _rows(logits: torch.Tensor) -> tuple[torch.Tensor, int, int, int, int]:
    """(tensor, inner, outer stride, inner stride, column stride): how row r of the flattened leading dims is found.

    Leading dimensions that merge into at most two are walked in place; anything stranger is copied once.
    """
    strides: list[tuple[int, int]] = []  # (size, stride), merged from the right
    for size, stride in zip(reversed(logits.shape[:-1]), reversed(logits.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if strides and stride == strides[-1][0] * strides[-1][1]:
            strides[-1] = (strides[-1][0] * size, strides[-1][1])
        else:
            strides.append((size, stride))
    if len(strides) > 2:
        return _rows(logits.contiguous())
    column = logits.stride(-1) if logits.shape[-1] > 1 else 1
    inner = strides[0] if strides else (1, 0)
    outer = strides[1] if len(strides) > 1 else (1, 0)
    return logits, max(inner[0], 1), outer[1], inner[1], column


def _flat(per_row: torch.Tensor) -> torch.Tensor:
    # reshape alone keeps the stride of a slice, or of the expanded gradient that sum() sends back.
    return per_row.reshape(-1).contiguous()


def _temperature(temperature: float | torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, float, bool]:
    if isinstance(temperature, torch.Tensor):
        return _flat(temperature), 0.0, True
    return like, 1.0 / temperature, False


def _fast() -> bool:
    return not INTERPRETED and torch.version.hip is None


def _forward_shape(vocabulary: int, itemsize: int) -> tuple[int, int, int]:
    """(lanes, width, warps): each lane reads 16 bytes at a time, so its maximum needs no other thread.

    What came closest to the copy bandwidth of an H200: 16 columns a thread.
    """
    width = 16 // itemsize
    if INTERPRETED:
        return 32, width, 1
    lanes = min(512, max(128, triton.next_power_of_2(triton.cdiv(vocabulary, width))))
    return lanes, width, max(1, lanes * width // 512)


def _element(tensor: torch.Tensor) -> int:
    """Which element of memory the tensor starts at."""
    return tensor.data_ptr() // tensor.element_size()


BACKWARD_BLOCK, BACKWARD_WARPS = 4096, 8


def statistics(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    *,
    first_label: int = 0,
    partial: bool = False,
    out: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Statistics of every row, each fp32 of the labels' shape.

    Returns ``(log_prob, entropy, max, others)``, or with ``partial``
    ``(max, others, u, label_logit)`` where ``label_logit`` is NaN for a label outside these columns. In ``out``,
    four contiguous tensors, if given.
    """
    logits, inner, stride_o, stride_i, stride_v = _rows(logits)
    flat = _flat(labels)
    n = flat.numel()
    if out is None:
        out = torch.empty((4, *labels.shape), dtype=torch.float32, device=logits.device).unbind()
    a, b, c, d = out
    if n == 0:
        return a, b, c, d
    per_row, inverse, is_tensor = _temperature(temperature, a)
    lanes, width, warps = _forward_shape(logits.shape[-1], logits.element_size())
    shift = _element(logits)
    outputs = (a, a, a, b, c, d) if partial else (a, b, c, d, d, d)
    with _on(logits):
        _statistics_kernel[(n,)](
            logits,
            flat,
            per_row,
            inverse,
            *outputs,
            logits.shape[-1],
            first_label,
            inner,
            shift % width,
            stride_o,
            stride_i,
            stride_v,
            PER_ROW=is_tensor,
            PARTIAL=partial,
            LANES=lanes,
            WIDTH=width,
            UNIT=stride_v == 1,
            EDGES=any(step % width for step in (logits.shape[-1], shift, stride_o, stride_i)),
            FAST=_fast(),
            num_warps=warps,
        )
    return a, b, c, d


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
    """Writes ``(1{v = label} - p_v) grad_log_prob / T`` to ``out`` (the logits' shape; may be the logits)."""
    n = labels.numel()
    if n == 0:
        return
    in_place = out.data_ptr() == logits.data_ptr()
    source, inner, stride_o, stride_i, stride_v = _rows(logits)
    if in_place and source is logits:
        target, out_o, out_i, out_v = out, stride_o, stride_i, stride_v
    else:
        target, out_inner, out_o, out_i, out_v = _rows(out)
        if target is not out or out_inner != inner:  # not the same walk over the leading dimensions
            target = out if out.is_contiguous() else torch.empty(out.shape, dtype=out.dtype, device=out.device)
            out_o, out_i, out_v = inner * out.shape[-1], out.shape[-1], 1
    per_row, inverse, is_tensor = _temperature(temperature, others)
    block = 1024 if INTERPRETED else BACKWARD_BLOCK
    width = 16 // max(logits.element_size(), out.element_size())
    shift = _element(source)
    ways = ((shift, _element(target)), (stride_o, out_o), (stride_i, out_i))
    if any((read - written) % width for read, written in ways):
        width = 1  # no column starts an access of both
    with _on(logits):
        _gradient_kernel[(n,)](
            source,
            _flat(labels),
            per_row,
            inverse,
            _flat(max_logit),
            _flat(others),
            _flat(log_prob),
            _flat(grad_log_prob.float()),
            target,
            logits.shape[-1],
            first_label,
            inner,
            shift % width,
            stride_o,
            stride_i,
            stride_v,
            out_o,
            out_i,
            out_v,
            PER_ROW=is_tensor,
            LANES=block // width,
            WIDTH=width,
            UNIT=stride_v == 1 and out_v == 1,
            EDGES=any(step % width for step in (logits.shape[-1], shift, stride_o, stride_i)),
            FAST=_fast(),
            num_warps=BACKWARD_WARPS,
        )
    if target is not out:
        out.copy_(target)


def _on(tensor: torch.Tensor):
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else torch.no_grad()
