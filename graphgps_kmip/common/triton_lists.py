"""Lists of entries (edges) by row (node) for Triton kernels, which sum the entries of a row in one program.

A stable sort in place of atomic additions makes sums repeat bit for bit. Rows with very many entries (hubs) are split
into parts of `CHUNK`, so that no program takes much longer than the others: a second launch of the same kernel adds the
sums of the parts, in order. No size is read back from the device. What is sorted once is kept as long as the tensor
lives unchanged: all layers of a model share the edges of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from graphgps_kmip.common.tensor_memo import remembered
from graphgps_kmip.common.triton_check import power_above

CHUNK = 512  # entries that a program sums; a multiple of every kernel's entries at a time
TILE = 512  # numbers of each kind that a program holds at a time: 16 for each thread


class RowLists(NamedTuple):
    """Entries of each of N rows. A row has its first part, and more where it has more than `CHUNK` entries.

    Args:
        order (Tensor): entries, those of a row one behind the other in their own order.
        bounds (Tensor): where the entries of each row begin in ``order``; the last two are their number.
        split (Tensor): where the further parts of each row begin in ``owner``; the last two are their number.
        owner (Tensor): row of each further part, N where there is none.

    Shapes:
        order (E,), bounds and split (N + 2,), owner (E // CHUNK, at least 1); all int64.
    """

    order: Tensor
    bounds: Tensor
    split: Tensor
    owner: Tensor

    @property
    def num_rows(self) -> int:
        """Number of rows N."""
        return len(self.bounds) - 2

    @property
    def num_parts(self) -> int:
        """Largest number of further parts that so many entries can have; 0: no row is split."""
        return len(self.order) // CHUNK

    def partial(self, width: int, like: Tensor) -> Tensor:
        """Return memory for the sums of all parts of the split rows, ``width`` numbers each."""
        return like.new_empty(2 * self.num_parts, width)

    def tile(self, width: int) -> dict[str, int]:
        """Return constants of a kernel, one warp a program, that holds so many columns (a power of two) of entries.

        As many entries at a time as rows have on average, so that few are missing; at least 8, for rows that have more.
        """
        average = power_above(-(-len(self.order) // max(1, self.num_rows)))
        entries = max(1, min(max(8, average), TILE // width, 32))
        return {"CHUNK": CHUNK, "ENTRIES": entries, "WIDTH": width, "num_warps": 1}

    def launch(self, kernel: Callable[[int, bool], None]) -> None:
        """Call ``kernel(number of programs, FINISH)``: for all parts, then, where rows may be split, for these."""
        if self.num_rows:
            with torch.cuda.device_of(self.order):
                kernel(self.num_rows + self.num_parts, False)
                if self.num_parts:
                    kernel(self.num_parts, True)


def lists_of(index: Tensor, num_rows: int) -> RowLists:
    """Return the entries of each row, sorted at the first call for this index.

    Args:
        index (Tensor): row of each entry.
        num_rows (int): N.

    Shapes:
        index (E,), integers.

    Raises:
        IndexError: a row that is not there; on a GPU the error is the device's.
    """
    return remembered(index, ("lists", num_rows), partial(_sorted, index, num_rows))


def _sorted(index: Tensor, num_rows: int) -> RowLists:
    rows = torch.arange(num_rows + 2, device=index.device, dtype=torch.int32)  # half as many passes as int64
    key, order = index.to(torch.int32).sort(stable=True)
    if len(key):  # a row that is not there: index_select looks, on the device itself
        rows[:num_rows].index_select(0, key[:: max(1, len(key) - 1)])
    bounds = torch.searchsorted(key, rows)
    further = (bounds.diff(append=bounds[-1:]) - 1).div(CHUNK, rounding_mode="floor").clamp(min=0)
    ends = further.cumsum(0)
    parts = torch.arange(max(1, len(index) // CHUNK), device=index.device)
    owner = torch.searchsorted(ends[:num_rows].contiguous(), parts, right=True)
    return RowLists(order, bounds, ends - further, owner)
