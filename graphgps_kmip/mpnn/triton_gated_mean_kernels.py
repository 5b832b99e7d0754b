"""Triton kernels of GatedGCN's gated means, device side; importing this file imports triton, which is optional.

Each kernel walks the edges of one node, for up to WIDTH channels, ENTRIES edges at a time; all sums are float32 at
least. With FINISH it puts the sums of split lists together (``common/triton_lists.py``).
"""

from __future__ import annotations

import triton
import triton.language as tl

from graphgps_kmip.common.triton_lists_kernels import entries_of, part_of, split_row, whole_sum


@triton.jit
def forward_kernel(
    own,  # (N, 2 C): a and d
    other,  # (M, 2 C): b and h
    edge,  # (E, C): c
    factor,  # (E,), or anything without HAS_FACTOR
    source,  # (E,)
    order, bounds, split, owner,  # edges by target
    partial,  # (2 parts, 2 C)
    gate,  # (E, C), out
    out,  # (N, C), out
    mean,  # (N, C), out
    inverse,  # (N, C), out
    num_rows,  # N
    num_others,  # M
    num_parts,
    EPS: tl.constexpr,
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """Gates of the edges into a node, their mean, and the node's result."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < C
    kind: tl.constexpr = mean.dtype.element_ty
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        total = whole_sum(partial, program, end, num_parts, 2 * C, column, inside)
        share = whole_sum(partial, program, end, num_parts, 2 * C, C + column, inside)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        shift = tl.load(own + row * 2 * C + C + column, mask=inside & (row < num_rows), other=0.0).to(kind)
        totals, shares = tl.zeros([ENTRIES, WIDTH], kind), tl.zeros([ENTRIES, WIDTH], kind)
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            given, value = _of_source(other, source, entry, real, mask, num_others, column, C, kind)
            given += _rows(edge, entry, mask, column, C).to(kind) + shift[None, :]
            rounded = given.to(gate.dtype.element_ty)  # the backward pass has no other
            tl.store(gate + entry[:, None] * C + column[None, :], rounded, mask=mask)
            weight = _sigmoid(rounded.to(kind))
            if HAS_FACTOR:
                weight *= tl.load(factor + entry, mask=real, other=0.0).to(kind)[:, None]
            weight = tl.where(mask, weight, 0.0)
            shares += weight
            totals += weight * value
        total, share = tl.sum(totals, axis=0), tl.sum(shares, axis=0)
    if at >= 0:
        tl.store(partial + at * 2 * C + column, total, mask=inside)
        tl.store(partial + at * 2 * C + C + column, share, mask=inside)
    elif row < num_rows:
        normaliser = 1.0 / (share + EPS)
        here = row * C + column
        tl.store(inverse + here, normaliser, mask=inside)
        tl.store(mean + here, total * normaliser, mask=inside)
        added = tl.load(own + row * 2 * C + column, mask=inside, other=0.0).to(kind) + total * normaliser
        tl.store(out + here, added.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_targets_kernel(
    grad_out,  # (N, C)
    grad_gate,  # (E, C), or anything without HAS_GRAD_GATE
    gate,  # (E, C)
    other,  # (M, 2 C)
    factor,  # (E,), or anything without HAS_FACTOR
    source,  # (E,)
    mean,  # (N, C)
    inverse,  # (N, C)
    order, bounds, split, owner,  # edges by target
    partial,  # (2 parts, C)
    grad_own,  # (N, 2 C), out
    grad_edge,  # (E, C), out
    grad_factor,  # (blocks of channels, E), out with HAS_FACTOR
    num_rows,  # N
    num_others,  # M
    num_parts,
    num_entries,  # E
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    HAS_GRAD_GATE: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """Gradients of the edges into a node, and of the node: ``dw = dtotal (b - mean)``, ``dg = f s (1 - s) dw``."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < C
    kind: tl.constexpr = mean.dtype.element_ty
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        total = whole_sum(partial, program, end, num_parts, C, column, inside)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        known = inside & (row < num_rows)
        middle = tl.load(mean + row * C + column, mask=known, other=0.0)
        grad_total = _grad_total(grad_out, inverse, row * C + column, known, kind)
        totals = tl.zeros([ENTRIES, WIDTH], kind)
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            _, value = _of_source(other, source, entry, real, mask, num_others, column, C, kind)
            sigma = _sigmoid(_rows(gate, entry, mask, column, C).to(kind))
            slope = tl.where(mask, sigma * grad_total[None, :] * (value - middle[None, :]), 0.0)
            result = slope * (1.0 - sigma)
            if HAS_FACTOR:
                place = tl.program_id(1).to(tl.int64) * num_entries + entry
                tl.store(grad_factor + place, tl.sum(slope, axis=1), mask=real)
                result *= tl.load(factor + entry, mask=real, other=0.0).to(kind)[:, None]
            if HAS_GRAD_GATE:
                result += _rows(grad_gate, entry, mask, column, C).to(kind)
            rounded = result.to(grad_edge.dtype.element_ty)
            tl.store(grad_edge + entry[:, None] * C + column[None, :], rounded, mask=mask)
            totals += result
        total = tl.sum(totals, axis=0)
    if at >= 0:
        tl.store(partial + at * C + column, total, mask=inside)
    elif row < num_rows:
        here = grad_own + row * 2 * C + column
        tl.store(here + C, total.to(grad_own.dtype.element_ty), mask=inside)
        tl.store(here, tl.load(grad_out + row * C + column, mask=inside, other=0.0), mask=inside)


@triton.jit
def backward_sources_kernel(
    grad_out,  # (N, C)
    grad_edge,  # (E, C)
    gate,  # (E, C)
    factor,  # (E,), or anything without HAS_FACTOR
    target,  # (E,)
    inverse,  # (N, C)
    order, bounds, split, owner,  # edges by source
    partial,  # (2 parts, 2 C)
    grad_other,  # (M, 2 C), out
    num_rows,  # M
    num_others,  # N
    num_parts,
    C: tl.constexpr,
    CHUNK: tl.constexpr,
    ENTRIES: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_FACTOR: tl.constexpr,
    FINISH: tl.constexpr,
):  # fmt: skip
    """Gradients of a source: ``db = sum w dtotal`` and ``dh = sum dg``."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < C
    kind: tl.constexpr = inverse.dtype.element_ty
    if FINISH:
        row, end = split_row(program, split, owner, num_rows)
        value = whole_sum(partial, program, end, num_parts, 2 * C, column, inside)
        slope = whole_sum(partial, program, end, num_parts, 2 * C, C + column, inside)
        at = tl.full([], -1, tl.int64)
    else:
        row, start, end, at = part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK)
        values, slopes = tl.zeros([ENTRIES, WIDTH], kind), tl.zeros([ENTRIES, WIDTH], kind)
        for first in range(start, end, ENTRIES):
            entry, real, mask = entries_of(order, first, end, inside, ENTRIES)
            node = tl.load(target + entry, mask=real, other=0).to(tl.int64)
            place = node[:, None] * C + column[None, :]
            weight = _sigmoid(_rows(gate, entry, mask, column, C).to(kind))
            if HAS_FACTOR:
                weight *= tl.load(factor + entry, mask=real, other=0.0).to(kind)[:, None]
            grad_total = _grad_total(grad_out, inverse, place, mask & (node < num_others)[:, None], kind)
            values += weight * grad_total
            slopes += _rows(grad_edge, entry, mask, column, C).to(kind)
        value, slope = tl.sum(values, axis=0), tl.sum(slopes, axis=0)
    if at >= 0:
        tl.store(partial + at * 2 * C + column, value, mask=inside)
        tl.store(partial + at * 2 * C + C + column, slope, mask=inside)
    elif row < num_rows:
        here = grad_other + row * 2 * C + column
        tl.store(here, value.to(grad_other.dtype.element_ty), mask=inside)
        tl.store(here + C, slope.to(grad_other.dtype.element_ty), mask=inside)


@triton.jit
def _of_source(other, source, entry, real, mask, num_others, column, C: tl.constexpr, kind: tl.constexpr):
    """Gate and value of the sources of edges; the gate is NaN where the source is not there."""
    node = tl.load(source + entry, mask=real, other=0).to(tl.int64)
    known = ((node >= 0) & (node < num_others))[:, None]
    place = other + node[:, None] * 2 * C + column[None, :]
    gate, value = (tl.load(place + C, mask=mask & known, other=0.0), tl.load(place, mask=mask & known, other=0.0))
    return tl.where(known, gate.to(kind), float("nan")), value.to(kind)


@triton.jit
def _rows(values, entry, mask, column, C: tl.constexpr):
    return tl.load(values + entry[:, None] * C + column[None, :], mask=mask, other=0.0)


@triton.jit
def _grad_total(grad_out, inverse, place, mask, kind: tl.constexpr):
    grad = tl.load(grad_out + place, mask=mask, other=0.0).to(kind)
    return grad * tl.load(inverse + place, mask=mask, other=0.0)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
