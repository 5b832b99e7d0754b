"""Graphs of a batch grouped by size, and the lengths of the Fourier transforms that convolve them.

A size that is a product of 2, 3, 5 and 7 is the length of the transform; any other size n needs a two-sided kernel of a
fast length of at least 2n - 1: transforms of prime length take up to 40 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise

import torch
from torch import Tensor

from graphgps_kmip.ops.host_copies import host_copy, on_device

CALL = 50_000  # numbers that could be transformed in the time of the calls for one more block
RADICES = (2, 3, 5, 7)


@lru_cache(maxsize=4096)
def fast_length(least: int) -> int:
    """Return the smallest product of 2, 3, 5 and 7 that is at least ``least``, 1 or more."""
    length = max(1, least)
    while not is_fast(length):
        length += 1
    return length


def is_fast(length: int) -> bool:
    """Return whether a length has no other prime factors than 2, 3, 5 and 7."""
    for radix in RADICES:
        while length % radix == 0:
            length //= radix
    return length == 1


@dataclass(frozen=True, eq=False)
class Block:
    """Graphs that are transformed together, b of them: all of one size, the length of their transforms, or padded."""

    length: int  # of the transforms
    sizes: tuple[int, ...]  # distinct sizes of the graphs: (length,), or all at most (length + 1) / 2
    filters: tuple[int, ...]  # first row of the filter of each size
    start: int  # first node of the first graph
    num_nodes: int
    kernel: Tensor  # (b,) which of the sizes each graph has
    rows: Tensor  # (b, largest size) node of each place; places beyond the size of a graph have that of its last node
    used: Tensor | None  # (b, largest size) places that are nodes; None: all

    @property
    def direct(self) -> bool:
        """Whether transforms have the length of the graphs, so that taps and nodes are used as they are."""
        return self.sizes == (self.length,)

    @property
    def nodes(self) -> slice | None:
        """The nodes of a single graph; None: there are several."""
        return slice(self.start, self.start + self.sizes[0]) if len(self.kernel) == 1 else None

    @property
    def tap_rows(self) -> slice:
        """Rows of the filters that belong to a block of one size."""
        return slice(self.filters[0], self.filters[0] + self.sizes[0])

    @cached_property
    def places(self) -> Tensor | None:
        """Which of the flat rows are nodes, (num_nodes,); None: all."""
        return None if self.used is None else _list_places(self.used, self.num_nodes)

    @cached_property
    def taps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row of the filters at each place of each kernel, (sizes, length), which places have one, and their list.

        A kernel has the tap of distance d at place d mod length, for all distances from 1 - n to n - 1.
        """
        place = torch.arange(self.length, device=self.rows.device)
        size, first = (on_device(values, place.device)[:, None] for values in (self.sizes, self.filters))
        is_negative = place > self.length - size  # distances below 0
        tap = torch.where(is_negative, place - self.length + size, place)
        has_tap = (place < size) | is_negative
        places = _list_places(has_tap, sum(2 * size - 1 for size in self.sizes))
        return first + tap.where(has_tap, tap.new_zeros(())), has_tap, places


@dataclass(frozen=True, eq=False)
class SizeGroups:
    """The graphs of a batch by their size, for filters that depend on it: of each size one, sum(sizes) rows in all."""

    sizes: tuple[int, ...]  # distinct, ascending, without 0
    starts: tuple[list[int], ...]  # first nodes of the graphs of each size
    device: torch.device  # of the nodes

    @classmethod
    def of(cls, ptr: Tensor) -> SizeGroups:
        """Group graphs by the boundaries (B+1,) of their nodes."""
        graphs: dict[int, list[int]] = {}
        for start, end in pairwise(host_copy(ptr).tolist()):
            graphs.setdefault(end - start, []).append(start)
        graphs.pop(0, None)
        sizes = tuple(sorted(graphs))
        return cls(sizes, tuple(graphs[size] for size in sizes), ptr.device)

    @property
    def num_rows(self) -> int:
        """Number of rows of the filters."""
        return sum(self.sizes)

    @cached_property
    def num_pairs(self) -> int:
        """Number of pairs of nodes inside graphs, sum of n^2."""
        return sum(size * size * len(starts) for size, starts in zip(self.sizes, self.starts, strict=True))

    @cached_property
    def num_transformed(self) -> int:
        """Numbers that are transformed for one channel: all graphs, and filters of all sizes, with their padding."""
        count = dict(zip(self.sizes, map(len, self.starts), strict=True))
        return sum(length * sum(count[size] + 1 for size in sizes) for length, sizes in self._choose_lengths())

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The graphs that are transformed together."""
        return tuple(self._make_block(length, sizes) for length, sizes in self._choose_lengths())

    @cached_property
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes (S,), where the graphs of each begin in the list (S+1,), and the list: first nodes of graphs (B,)."""
        first = list(accumulate(map(len, self.starts), initial=0))
        lists = self.sizes, first, [*chain.from_iterable(self.starts)]
        return tuple(torch.tensor(numbers, dtype=torch.int64) for numbers in lists)

    def _choose_lengths(self) -> list[tuple[int, list[int]]]:
        """Choose (length, sizes) of blocks: one for each size, or one for all where calls cost more than padding."""
        apart = [(size if is_fast(size) else fast_length(2 * size - 1), [size]) for size in self.sizes]
        if len(apart) < 2:
            return apart
        together, counts = fast_length(2 * self.sizes[-1] - 1), list(map(len, self.starts))
        separate = sum(count * length + CALL for count, (length, _) in zip(counts, apart, strict=True))
        return apart if separate <= sum(counts) * together + CALL else [(together, list(self.sizes))]

    def _make_block(self, length: int, sizes: list[int]) -> Block:
        graphs = dict(zip(self.sizes, self.starts, strict=True))
        first_rows = dict(zip(self.sizes, accumulate(self.sizes, initial=0), strict=False))
        starts = [start for size in sizes for start in graphs[size]]
        kinds = [number for number, size in enumerate(sizes) for _ in graphs[size]]
        graph_sizes = [sizes[kind] for kind in kinds]
        size = on_device(graph_sizes, self.device)[:, None]
        place = torch.arange(sizes[-1], device=self.device)
        rows = on_device(starts, self.device)[:, None] + torch.minimum(place, size - 1)
        filters = tuple(first_rows[size] for size in sizes)
        kernel, used = on_device(kinds, self.device), place < size if len(sizes) > 1 else None
        return Block(length, tuple(sizes), filters, starts[0], sum(graph_sizes), kernel, rows, used)


def _list_places(mask: Tensor, number: int) -> Tensor:
    return torch.nonzero_static(mask.flatten(), size=number).squeeze(1)
