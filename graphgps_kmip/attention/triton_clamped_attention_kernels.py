"""Triton kernels of clamped attention along edges, device side; importing this file imports triton, which is optional.

Each program walks the edges of one row (a query, a key, or a kind of edges) for one head, ENTRIES at a time. With
FINISH it puts the sums of split lists together (``common/triton_lists.py``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from graphgps_kmip.common.triton_lists_kernels import entries_of, part_of, split_row, whole_sum


@triton.jit
def forward_kernel(
    q,  # (M, H, D)
    k,  # (N, H, D)
    v,  # (N, H, D)
    e,  # (R, H, ED)
    bias,  # (R, H), or anything without HAS_BIAS
    keep,  # (E, H) bool, or anything without HAS_KEEP
    source,  # (E,) row of k and v
    kind,  # (E,) row of e and bias
    order, bounds, split, owner,  # edges by target
    partial,  # (2 parts, H (D + 1))
    out,  # (M, H, D), out
    total,  # (M, H), out: sums of scores, and EPS
    num_rows,  # M
    num_keys,  # N
    num_kinds,  # R
    num_parts,
    LIMIT: tl.constexpr,
    EPS: tl.constexpr,
    SCALE: tl.constexpr,
    KEPT_PART: tl.constexpr,  # 1 - dropout
    H: tl.constexpr,
    D: tl.constexpr,
    ED: tl.constexpr,  # D, or 1: one number for all channels
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """Weighted means of the values of a query's edges, and the sum of its scores."""
    program, head, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    inside = column < D
    place = head * (D + 1)  # in a row of partial sums
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        values = whole_sum(partial, program, end, num_parts, H * (D + 1), place + column, inside)
        share = whole_sum(partial, program, end, num_parts, H * (D + 1), place + D, head < H)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        query = tl.load(q + (row * H + head) * D + column, mask=inside & (row < num_rows), other=0.0)
        shares, sums = tl.zeros([ENTRIES], q.dtype.element_ty), tl.zeros([ENTRIES, WIDTH], q.dtype.element_ty)
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            at_key, at_kind, key, edge = _ends(
                k, e, source, kind, entry, real, mask, head, column, num_keys, num_kinds, H, D, ED
            )
            logit = _logit(query, key, edge, bias, at_kind, real, head, SCALE, H, HAS_BIAS)
            score = tl.where(real, tl.exp(_clamped(logit, LIMIT)), 0.0)
            shares += score
            if HAS_KEEP:
                score = score * _kept(keep, entry, real, head, H, KEPT_PART, score.dtype)
            sums += score[:, None] * tl.load(v + at_key, mask=mask, other=0.0)
        share, values = tl.sum(shares, axis=0), tl.sum(sums, axis=0)
    if at >= 0:
        tl.store(partial + at * H * (D + 1) + place + column, values, mask=inside)
        tl.store(partial + at * H * (D + 1) + place + D, share)
    elif row < num_rows:
        share += EPS
        share = tl.where(share == 0.0, 1.0, share)
        tl.store(total + row * H + head, share)
        tl.store(out + (row * H + head) * D + column, values / share, mask=inside)


@triton.jit
def backward_kernel(
    q, k, v, e, bias, keep, source, kind,  # as in the forward
    grad_sum,  # (M, H, D) gradient of sum s v
    grad_total,  # (M, H) minus the gradient of sum s
    order, bounds, split, owner,  # edges by target
    partial,  # (2 parts, H (D + 1))
    grad_q,  # (M, H, D), out
    grad_logit,  # (E, H), out
    used,  # (E, H), out: scores, after dropout
    num_rows,  # M
    num_keys,  # N
    num_kinds,  # R
    num_parts,
    LIMIT: tl.constexpr,
    SCALE: tl.constexpr,
    KEPT_PART: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ED: tl.constexpr,
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """Gradients of a query and of the logits of its edges, and the scores once more."""
    program, head, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    inside, place = column < D, tl.program_id(1) * (D + 1)
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        result = whole_sum(partial, program, end, num_parts, H * (D + 1), place + column, inside)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        there = inside & (row < num_rows)
        query = tl.load(q + (row * H + head) * D + column, mask=there, other=0.0)
        grad = tl.load(grad_sum + (row * H + head) * D + column, mask=there, other=0.0)
        grad_share = tl.load(grad_total + row * H + head, mask=row < num_rows, other=0.0)
        results = tl.zeros([ENTRIES, WIDTH], q.dtype.element_ty)
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            at_key, at_kind, key, edge = _ends(
                k, e, source, kind, entry, real, mask, head, column, num_keys, num_kinds, H, D, ED
            )
            logit = _logit(query, key, edge, bias, at_kind, real, head, SCALE, H, HAS_BIAS)
            score = tl.where(real, tl.exp(_clamped(logit, LIMIT)), 0.0)
            grad_score = tl.sum(grad[None, :] * tl.load(v + at_key, mask=mask, other=0.0), axis=1)
            dropped = score
            if HAS_KEEP:
                factor = _kept(keep, entry, real, head, H, KEPT_PART, score.dtype)
                grad_score, dropped = grad_score * factor, score * factor
            slope = tl.where(tl.abs(logit) > LIMIT, 0.0, (grad_score - grad_share) * score)
            tl.store(grad_logit + entry * H + head, slope, mask=real)
            tl.store(used + entry * H + head, dropped, mask=real)
            results += (slope * SCALE)[:, None] * key * edge
        result = tl.sum(results, axis=0)
    if at >= 0:
        tl.store(partial + at * H * (D + 1) + place + column, result, mask=inside)
    elif row < num_rows:
        tl.store(grad_q + (row * H + head) * D + column, result, mask=inside)


@triton.jit
def product_sum_kernel(
    weight,  # (E, H)
    first_factor,  # (.., H, D)
    first_row,  # (E,) row of first_factor
    second_factor,  # (.., H, ED), or anything without HAS_SECOND
    second_row,  # (E,) row of second_factor
    order, bounds, split, owner,  # edges by row of the result
    partial,  # (2 parts, H (D + 1))
    out,  # (rows, H, D), out
    total,  # (rows, H), out with HAS_TOTAL
    num_rows,
    num_parts,
    SCALE: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ED: tl.constexpr,
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_SECOND: tl.constexpr,
    HAS_TOTAL: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """``out_r = SCALE sum_e w_e a_e b_e`` and ``total_r = sum_e w_e`` over the edges e of a row r."""
    program, head, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    inside, place = column < D, tl.program_id(1) * (D + 1)
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        result = whole_sum(partial, program, end, num_parts, H * (D + 1), place + column, inside)
        share = whole_sum(partial, program, end, num_parts, H * (D + 1), place + D, head < H)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        shares, results = (
            tl.zeros([ENTRIES], weight.dtype.element_ty), tl.zeros([ENTRIES, WIDTH], weight.dtype.element_ty)
        )  # fmt: skip
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            factor = tl.load(weight + entry * H + head, mask=real, other=0.0)
            shares += factor
            node = tl.load(first_row + entry, mask=real, other=0).to(tl.int64)
            product = tl.load(first_factor + ((node * H + head) * D)[:, None] + column[None, :], mask=mask, other=0.0)
            if HAS_SECOND:
                node = tl.load(second_row + entry, mask=real, other=0).to(tl.int64)
                product *= _channels(second_factor, node * H + head, column, mask, ED)
            results += factor[:, None] * product
        share, result = tl.sum(shares, axis=0), tl.sum(results, axis=0) * SCALE
    if at >= 0:
        tl.store(partial + at * H * (D + 1) + place + column, result, mask=inside)
        tl.store(partial + at * H * (D + 1) + place + D, share)
    elif row < num_rows:
        tl.store(out + (row * H + head) * D + column, result, mask=inside)
        if HAS_TOTAL:
            tl.store(total + row * H + head, share)


@triton.jit
def _ends(
    k, e, source, kind, entry, real, mask, head, column, num_keys, num_kinds,
    H: tl.constexpr, D: tl.constexpr, ED: tl.constexpr,
):  # fmt: skip
    """Places of the edges' keys, rows of their kinds, keys (NaN where a row is not there), and edge features."""
    node = tl.load(source + entry, mask=real, other=0).to(tl.int64)
    row = tl.load(kind + entry, mask=real, other=0).to(tl.int64)
    known = (node >= 0) & (node < num_keys) & (row >= 0) & (row < num_kinds)
    node, row = tl.where(known, node, 0), tl.where(known, row, 0)
    place = ((node * H + head) * D)[:, None] + column[None, :]
    key = tl.load(k + place, mask=mask, other=0.0)
    key = tl.where(known[:, None] | ~mask, key, float("nan"))
    return place, row, key, _channels(e, row * H + head, column, mask, ED)


@triton.jit
def _channels(values, row, column, mask, ED: tl.constexpr):
    """Rows of values, of all channels or of the one that serves for all."""
    if ED == 1:
        return tl.load(values + row[:, None] + tl.zeros_like(column)[None, :], mask=mask, other=0.0)
    return tl.load(values + row[:, None] * ED + column[None, :], mask=mask, other=0.0)


@triton.jit
def _logit(query, key, edge, bias, at_kind, real, head, SCALE: tl.constexpr, H: tl.constexpr, HAS_BIAS: tl.constexpr):
    logit = tl.sum(query[None, :] * key * edge, axis=1) * SCALE
    if HAS_BIAS:
        logit += tl.load(bias + at_kind * H + head, mask=real, other=0.0)
    return logit


@triton.jit
def _clamped(logit, LIMIT: tl.constexpr):
    """Comparisons, unlike minimum and maximum, let a NaN through."""
    return tl.where(logit > LIMIT, LIMIT, tl.where(logit < -LIMIT, -LIMIT, logit))


@triton.jit
def _kept(keep, entry, real, head, H: tl.constexpr, KEPT_PART: tl.constexpr, dtype: tl.constexpr):
    return tl.load(keep + entry * H + head, mask=real, other=0).to(dtype) / KEPT_PART
