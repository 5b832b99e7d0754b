"""Triton kernels of sparse attention, device side; importing this file imports triton, which is optional."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    v,  # (S, C)
    rows,  # (R, K) row of v, -1: missing
    score,  # (R, K), -inf: missing
    keep,  # (R, K) bool, or anything without HAS_KEEP
    out,  # (R, C)
    weight,  # (R, K)
    num_rows,
    num_slots,
    TEMPERATURE: tl.constexpr,  # of the softmax: sqrt(D); a constant stays float64 where the values are
    KEPT_PART: tl.constexpr,  # 1 - dropout
    C: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):
    """Weights and sums of ROWS queries."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place, real = _slots(row, num_rows, num_slots, SLOTS)
    scaled = tl.load(score + place, mask=real, other=float("-inf")).to(out.dtype.element_ty) / TEMPERATURE
    top = tl.max(scaled, axis=1)[:, None]
    unnormalised = tl.exp(scaled - tl.where(top > float("-inf"), top, 0.0))
    total = tl.sum(unnormalised, axis=1)[:, None]
    used = unnormalised / tl.where(total > 0, total, 1.0)  # a query without any key has weights 0
    tl.store(weight + place, used, mask=real)
    if HAS_KEEP:
        used = used * tl.load(keep + place, mask=real, other=0).to(used.dtype) / KEPT_PART
    at = tl.load(rows + place, mask=real, other=-1).to(tl.int64)
    for start in range(0, C, WIDTH):
        column = start + tl.arange(0, WIDTH)
        result = tl.sum(_gather(v, at, column, C) * used[:, :, None], axis=1)
        _store_rows(out, result, row, num_rows, column, C)


@triton.jit
def backward_kernel(
    grad_out,  # (R, C)
    k,  # (S, D)
    v,  # (S, C)
    rows,  # (R, K)
    weight,  # (R, K), before dropout
    keep,  # (R, K) bool, or anything without HAS_KEEP
    grad_q,  # (R, D), out
    grad_score,  # (R, K), out
    num_rows,
    num_slots,
    TEMPERATURE: tl.constexpr,
    KEPT_PART: tl.constexpr,
    C: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):
    """Gradients of the scores and the queries of ROWS rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    place, real = _slots(row, num_rows, num_slots, SLOTS)
    at = tl.load(rows + place, mask=real, other=-1).to(tl.int64)
    grad_weight = tl.zeros([ROWS, SLOTS], v.dtype.element_ty)
    for start in range(0, C, WIDTH):
        column = start + tl.arange(0, WIDTH)
        inside = (row < num_rows)[:, None] & (column < C)[None, :]
        grad = tl.load(grad_out + row[:, None] * C + column[None, :], mask=inside, other=0.0)
        grad_weight += tl.sum(_gather(v, at, column, C) * grad[:, None, :], axis=2)
    if HAS_KEEP:
        grad_weight = grad_weight * tl.load(keep + place, mask=real, other=0).to(grad_weight.dtype) / KEPT_PART
    softmax = tl.load(weight + place, mask=real, other=0.0)
    mean = tl.sum(softmax * grad_weight, axis=1)[:, None]
    slope = softmax * (grad_weight - mean) / TEMPERATURE
    tl.store(grad_score + place, slope, mask=real)
    for start in range(0, D, WIDTH):
        column = start + tl.arange(0, WIDTH)
        _store_rows(grad_q, tl.sum(_gather(k, at, column, D) * slope[:, :, None], axis=1), row, num_rows, column, D)


@triton.jit
def segment_kernel(
    values,  # (rows, C)
    weight,  # of each entry
    order,  # entries, those of a segment consecutively
    starts,  # (segments,) first place in order
    ends,  # (segments,)
    out,  # (segments, C)
    num_slots,  # entry // num_slots is the row of its value
    C: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    WEIGHTED: tl.constexpr,  # False: entry = row = place, of weight 1
):
    """``out_s = sum_e weight_e values_row(e)`` over the entries e of segment s (program 0), always in one order."""
    segment = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    start, end = tl.load(starts + segment), tl.load(ends + segment)
    total = tl.zeros([ENTRIES, WIDTH], out.dtype.element_ty)
    for first in range(start, end, ENTRIES):
        place = first + tl.arange(0, ENTRIES)
        inside = place < end
        row = place
        if WEIGHTED:
            entry = tl.load(order + place, mask=inside, other=0)
            row = entry // num_slots
        mask = inside[:, None] & (column < C)[None, :]
        value = tl.load(values + row.to(tl.int64)[:, None] * C + column[None, :], mask=mask, other=0.0)
        if WEIGHTED:
            value = value * tl.load(weight + entry, mask=inside, other=0.0)[:, None]
        total += value
    tl.store(out + segment * C + column, tl.sum(total, axis=0), mask=column < C)


@triton.jit
def _slots(row, num_rows, num_slots, SLOTS: tl.constexpr):
    """Index of each slot of these rows in (R, K), and whether that slot exists: both (ROWS, SLOTS)."""
    slot = tl.arange(0, SLOTS)
    return row[:, None] * num_slots + slot[None, :], (row < num_rows)[:, None] & (slot < num_slots)[None, :]


@triton.jit
def _gather(values, at, column, C: tl.constexpr):
    """Some columns of the values (ROWS, SLOTS, WIDTH) in each slot, 0 where one is missing."""
    mask = (at >= 0)[:, :, None] & (column < C)[None, None, :]
    return tl.load(values + at[:, :, None] * C + column[None, None, :], mask=mask, other=0.0)


@triton.jit
def _store_rows(out, result, row, num_rows, column, C: tl.constexpr):
    tl.store(out + row[:, None] * C + column[None, :], result, mask=(row < num_rows)[:, None] & (column < C)[None, :])
