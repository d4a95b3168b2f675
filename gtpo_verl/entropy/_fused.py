"""For Hopper GPUs: the LM head's matmul, whose epilogue takes each row's statistics; no logits are written.

A tile of logits [tokens, columns] stays in registers, in fp32, and leaves (maximum, others, u) of its columns for each
of its rows (see :mod:`gtpo_verl.entropy._kernels`); a second kernel puts the tiles of a row together.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from gtpo_verl.entropy._kernels import (
    INTERPRETED,
    LN2,
    LOG2E,
    LOWEST,
    _drop,
    _fast,
    _log1p,
    _on,
    _temperature,
)

# Bytes of the tiles' statistics, of which every 256 columns leave 12 a token.
PART_BYTES = 1 << 28
# Rows, columns and depth of a tile; tiles of rows that share columns while these are cached; stages of the pipeline.
SHAPE = (32, 64, 16, 2, 1) if INTERPRETED else (128, 256, 64, 12, 4)
WARPS = 1 if INTERPRETED else 8
# Triton's interpreter multiplies bf16 as if it were an integer.
_DTYPES = (torch.float16,) if INTERPRETED else (torch.bfloat16, torch.float16)


@triton.jit(
    do_not_specialize=["M", "first_tile", "tiles"],
    do_not_specialize_on_alignment=["label_ptr", "temperature_ptr", "label_logit_ptr"],
)
def _tiles_kernel(
    hidden,
    weight,
    label_ptr,
    temperature_ptr,
    inverse_temperature,
    part_ptr,
    label_logit_ptr,
    M,
    V,
    K,
    first_tile,
    tiles,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
    EVEN: tl.constexpr,
    FLAT: tl.constexpr,
    PER_ROW: tl.constexpr,
    FAST: tl.constexpr,
):
    """part [3, tiles of columns, M]: maximum, others, and u in base 2; label_logit where the label is in the tile.

    These are the tiles of columns from first_tile on; EVEN if they lie inside V.
    """
    tiles_m = tl.cdiv(M, BM)
    tiles_k = tl.cdiv(K, BK)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles, PROGRAMS, flatten=FLAT):
        first = tile // (GROUP * tiles) * GROUP
        size = min(tiles_m - first, GROUP)
        m0 = (first + tile % (GROUP * tiles) % size) * BM
        n = first_tile + tile % (GROUP * tiles) // size
        n0 = n * BN
        x = tl.zeros((BM, BN), tl.float32)
        for k in range(tiles_k):
            a = hidden.load([m0, k * BK])
            b = weight.load([n0, k * BK])
            x = tl.dot(a, b.T, x)

        row = m0 + tl.arange(0, BM)
        column = n0 + tl.arange(0, BN)
        if not EVEN:
            x = tl.where(column[None, :] < V, x, float("-inf"))
        label = tl.load(label_ptr + row, mask=row < M, other=0).to(tl.int64)
        here = (row < M) & (label >= n0) & (label < n0 + BN) & (label < V)
        # One column at most: the sum is its value.
        at = tl.sum(tl.where(column[None, :] == tl.where(here, label, -1).to(tl.int32)[:, None], x, 0.0), 1)
        tl.store(label_logit_ptr + row, at, mask=here)

        if PER_ROW:
            t = tl.load(temperature_ptr + row, mask=row < M, other=1.0)
            c = tl.where(t > 0.0, LOG2E / t, float("nan"))[:, None]
        else:
            c = inverse_temperature * LOG2E
        high = tl.max(x, 1)
        e, d = _drop(x, tl.maximum(high, LOWEST)[:, None], c, FAST)
        below = tl.sum(tl.where(d >= 0.0, 0.0, e), 1)
        # e is exactly 1 at the maximum, so this difference is the number of its occurrences up to rounding.
        ties = tl.floor(tl.sum(e, 1) - below + 0.5)
        to = part_ptr + n.to(tl.int64) * M + row
        step = M.to(tl.int64) * tl.cdiv(V, BN)  # M is never a constant, which V is where it is 1
        tl.store(to, high, mask=row < M)
        tl.store(to + step, below + (ties - 1.0), mask=row < M)
        tl.store(to + 2 * step, tl.sum(e * d, 1), mask=row < M)


@triton.jit(
    do_not_specialize=["M"],
    do_not_specialize_on_alignment=[
        "temperature_ptr",
        "label_logit_ptr",
        "log_prob_ptr",
        "entropy_ptr",
        "max_ptr",
        "others_ptr",
    ],
)
def _merge_kernel(
    part_ptr,
    label_logit_ptr,
    temperature_ptr,
    inverse_temperature,
    log_prob_ptr,
    entropy_ptr,
    max_ptr,
    others_ptr,
    M,
    tiles_n,
    PER_ROW: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < M
    if PER_ROW:
        t = tl.load(temperature_ptr + row, mask=mask, other=1.0)
        inv_t = tl.where(t > 0.0, 1.0 / t, float("nan"))
    else:
        inv_t = inverse_temperature + tl.zeros((ROWS,), tl.float32)
    c = inv_t * LOG2E
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    others = tl.zeros((ROWS,), tl.float32)
    u = tl.zeros((ROWS,), tl.float32)
    step = M.to(tl.int64) * tiles_n  # which is a constant where it is 1
    for start in range(0, tiles_n, TILES):
        tile = start + tl.arange(0, TILES)
        at = part_ptr + tile.to(tl.int64)[:, None] * M + row[None, :]
        inside = (tile < tiles_n)[:, None] & mask[None, :]
        x = tl.load(at, mask=inside, other=float("-inf"))
        of_tile = tl.load(at + step, mask=inside, other=-1.0)
        u_of_tile = tl.load(at + 2 * step, mask=inside, other=0.0)
        new = tl.maximum(m, tl.max(x, 0))
        high = tl.maximum(new, LOWEST)
        f, df = _drop(m, high, c, False)
        e, d = _drop(x, high[None, :], c[None, :], False)
        top = d >= 0.0
        ties = tl.sum(tl.where(top, 1.0, 0.0), 0)
        stays = m == new
        # One of the equal maxima is the implied 1: the row's own if it stays, else one of these tiles'.
        u = tl.where(stays, u, f * (u + df * (others + 1.0))) + tl.sum(e * (u_of_tile + d * (of_tile + 1.0)), 0)
        others = tl.where(stays, others + ties, f * (others + 1.0) + (ties - 1.0))
        others += tl.sum(tl.where(top, of_tile, e * (of_tile + 1.0)), 0)
        m = new
    m = tl.where(others != others, float("nan"), m)
    invalid = (m == float("-inf")) | (m == float("inf"))
    others = tl.where(invalid, float("nan"), others)
    log_sum = _log1p(others)
    label_logit = tl.load(label_logit_ptr + row, mask=mask)
    tl.store(log_prob_ptr + row, (label_logit - m) * inv_t - log_sum, mask=mask)
    tl.store(entropy_ptr + row, log_sum - u * LN2 / (1.0 + others), mask=mask)
    tl.store(max_ptr + row, m, mask=mask)
    tl.store(others_ptr + row, others, mask=mask)


def serves(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the kernel takes these operands: 16-bit, in rows that start on 16 bytes, on a GPU with Hopper's units."""
    if hidden.dtype not in _DTYPES or not (INTERPRETED or hidden.is_cuda):
        return False
    if hidden.is_cuda and (torch.version.hip is not None or torch.cuda.get_device_capability(hidden.device) != (9, 0)):
        return False
    return all(x.stride(-1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in (hidden, weight))


def statistics(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    temperature: float | torch.Tensor,
    out: tuple[torch.Tensor, ...],
    chunk_tokens: int | None = None,
) -> tuple[torch.Tensor, ...]:
    """``(log_prob, entropy, max, others)`` [n] of hidden [n, E] and weight [V, E], in ``out``, four tensors of fp32."""
    n, width = hidden.shape
    vocabulary = weight.shape[0]
    bm, bn, bk, group, stages = SHAPE
    tiles_n = triton.cdiv(vocabulary, bn)
    tokens = max(bm, PART_BYTES // (12 * tiles_n) // bm * bm) if chunk_tokens is None else chunk_tokens
    tokens = min(tokens, n)
    part = torch.empty(3 * tiles_n * tokens, dtype=torch.float32, device=hidden.device)
    label_logit = torch.full((n,), float("nan"), dtype=torch.float32, device=hidden.device)
    programs = 3
    if hidden.is_cuda:
        programs = torch.cuda.get_device_properties(hidden.device).multi_processor_count
    with _on(hidden):
        columns = TensorDescriptor.from_tensor(weight, [bn, bk])
        for start in range(0, n, tokens):
            rows = slice(start, min(start + tokens, n))
            m = rows.stop - rows.start
            per_row, inverse, is_tensor = _temperature(
                temperature[rows] if isinstance(temperature, torch.Tensor) else temperature, label_logit
            )
            # The columns that fill no tile in a launch of their own: a mask would cost the others a quarter.
            for first, tiles, even in (
                (0, vocabulary // bn, True),
                (vocabulary // bn, tiles_n - vocabulary // bn, False),
            ):
                if tiles == 0:
                    continue
                _tiles_kernel[(min(programs, triton.cdiv(m, bm) * tiles),)](
                    TensorDescriptor.from_tensor(hidden[rows], [bm, bk]),
                    columns,
                    labels[rows],
                    per_row,
                    inverse,
                    part,
                    label_logit[rows],
                    m,
                    vocabulary,
                    width,
                    first,
                    tiles,
                    BM=bm,
                    BN=bn,
                    BK=bk,
                    GROUP=group,
                    PROGRAMS=programs,
                    EVEN=even,
                    FLAT=not INTERPRETED,
                    PER_ROW=is_tensor,
                    FAST=_fast(),
                    num_warps=WARPS,
                    num_stages=stages,
                )
            _merge_kernel[(triton.cdiv(m, 64),)](
                part,
                label_logit[rows],
                per_row,
                inverse,
                *(x[rows] for x in out),
                m,
                tiles_n,
                PER_ROW=is_tensor,
                ROWS=64,
                TILES=16,
                num_warps=4,
            )
    return out
