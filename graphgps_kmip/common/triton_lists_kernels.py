"""Parts of lists in Triton kernels, device side (see ``triton_lists.py``); importing this file imports triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def part_of(program, bounds, split, owner, num_rows, num_parts, CHUNK: tl.constexpr):
    """Row of a program, first and last place of its entries, and where its sum goes: -1 to the row itself.

    Programs from num_rows on have the further parts of rows; one without a part has row num_rows, and no entry.
    """
    further = program >= num_rows
    row = tl.load(owner + (program - num_rows), mask=further, other=0)
    row = tl.where(further, row, program)
    before = tl.load(split + row)
    start = tl.load(bounds + row) + tl.where(further, program - num_rows - before + 1, 0) * CHUNK
    end = tl.minimum(start + CHUNK, tl.load(bounds + row + 1))
    is_split = tl.load(split + row + 1) > before
    partial = tl.where(further, program - num_rows, num_parts + before)
    return row, start, end, tl.where(is_split, partial, -1)


@triton.jit
def entries_of(order, first, end, inside, ENTRIES: tl.constexpr):
    """Some entries of a list, which of them there are, and which of their columns: (ENTRIES,) and (ENTRIES, WIDTH)."""
    place = first + tl.arange(0, ENTRIES)
    real = place < end
    return tl.load(order + place, mask=real, other=0), real, real[:, None] & inside[None, :]


@triton.jit
def split_row(part, split, owner, num_rows):
    """Row whose first further part this is, or num_rows, and the end of its further parts."""
    row = tl.load(owner + part)
    is_first = tl.load(split + row) == part
    return tl.where(is_first, row, num_rows), tl.load(split + row + 1)


@triton.jit
def whole_sum(partial, part, end, num_parts, width, column, inside):
    """Sum of all parts of a row: of the first, which lies behind the others, then of the further ones."""
    total = tl.load(partial + (num_parts + part) * width + column, mask=inside, other=0.0)
    for other in range(part, end):
        total += tl.load(partial + other * width + column, mask=inside, other=0.0)
    return total
