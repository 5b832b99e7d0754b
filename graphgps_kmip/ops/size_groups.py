"""Graphs of a batch grouped by size, and the lengths of the Fourier transforms that convolve them.

A graph whose size is a product of 2, 3, 5 and 7 is transformed at its own length; any other size n through a two-sided
kernel of a fast length of at least 2n - 1, for a transform of prime length takes up to 40 times as long. Graphs that
share a length are transformed together.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the smallest product of 2, 3, 5 and 7 that is at least so large, 1 or more."""
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
    """Graphs that are transformed together.

    Args:
        length (int): of their transforms.
        sizes (tuple[int, ...]): distinct sizes of the graphs, all equal to length, or all at most (length + 1) / 2.
        filters (tuple[int, ...]): first row of the filter of each of these sizes.
        start (int): first node of the first graph.
        num_nodes (int): nodes of all graphs together.
        kernel (Tensor): which of the sizes each graph has.
        rows (Tensor): node of each place of each graph; places beyond its size have the one of its last node.
        used (Tensor, optional): places that are nodes; None: all.

    Shapes: kernel (b,), rows and used (b, largest size).
    """

    length: int
    sizes: tuple[int, ...]
    filters: tuple[int, ...]
    start: int
    num_nodes: int
    kernel: Tensor
    rows: Tensor
    used: Tensor | None

    @property
    def direct(self) -> bool:
        """Whether a transform has the length of the graphs, so that taps and nodes stand as they are."""
        return self.sizes == (self.length,)

    @property
    def nodes(self) -> slice | None:
        """The nodes of a single graph; None: there are several."""
        return slice(self.start, self.start + self.sizes[0]) if len(self.kernel) == 1 else None

    @property
    def own_taps(self) -> slice:
        """Rows of the filters that belong to a block of one size."""
        return slice(self.filters[0], self.filters[0] + self.sizes[0])

    @cached_property
    def places(self) -> Tensor | None:
        """Which of the flat rows are nodes, (num_nodes,); None: all."""
        return None if self.used is None else _where(self.used, self.num_nodes)

    @cached_property
    def taps(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row of the filters at each place of each kernel, (sizes, length), which places have one, and their list.

        A kernel has the tap of distance d at place d mod length, for all distances from 1 - n to n - 1.
        """
        place = torch.arange(self.length, device=self.rows.device)
        size, first = (on_device(values, place.device)[:, None] for values in (self.sizes, self.filters))
        ahead, behind = place < size, place > self.length - size
        tap = torch.where(behind, place - self.length + size, place)
        has_one = ahead | behind
        places = _where(has_one, sum(2 * size - 1 for size in self.sizes))
        return first + tap.where(has_one, tap.new_zeros(())), has_one, places


@dataclass(frozen=True, eq=False)
class SizeGroups:
    """The graphs of a batch by their size, for filters that depend on it.

    Args:
        sizes (tuple[int, ...]): distinct sizes, ascending, without 0; filters of these lengths stand one behind the
            other.
        starts (tuple[list[int], ...]): first nodes of the graphs of each size.
        device (torch.device): of the nodes.

    Shapes: filters have sum(sizes) rows.
    """

    sizes: tuple[int, ...]
    starts: tuple[list[int], ...]
    device: torch.device

    @classmethod
    def of(cls, ptr: Tensor) -> SizeGroups:
        """Group graphs by the boundaries (B+1,) of their nodes."""
        bounds = host_copy(ptr).tolist()
        graphs: dict[int, list[int]] = {}
        for start, end in pairwise(bounds):
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
    def graphs(self) -> dict[int, list[int]]:
        """First nodes of the graphs of each size."""
        return dict(zip(self.sizes, self.starts, strict=True))

    @cached_property
    def num_transformed(self) -> int:
        """Numbers that are transformed for one channel: all graphs, and filters of all sizes, with their padding."""
        groups = _grouped(self.graphs)
        return sum(length * sum(len(self.graphs[size]) + 1 for size in sizes) for length, sizes in groups)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """What is transformed together."""
        first = dict(zip(self.sizes, _running_sum(self.sizes), strict=True))
        groups = _grouped(self.graphs)
        return tuple(_block(length, sizes, self.graphs, first, self.device) for length, sizes in groups)

    @cached_property
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes (S,), where the graphs of each begin in the list (S+1,), and the list: first nodes of graphs (B,)."""
        first = _running_sum([*map(len, self.starts), 0])
        lists = self.sizes, first, [*chain.from_iterable(self.starts)]
        return tuple(torch.tensor(one, dtype=torch.int64) for one in lists)


def _where(mask: Tensor, number: int) -> Tensor:
    """Flat places where a mask is True, of which the host knows the number."""
    return torch.nonzero_static(mask.flatten(), size=number).squeeze(1)


def _running_sum(sizes: Sequence[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))[:-1]


def _grouped(graphs: dict[int, list[int]]) -> list[tuple[int, list[int]]]:
    """Choose (length, sizes) of blocks: one for each size, or one for all where the calls cost more than padding."""
    apart = [(size if is_fast(size) else fast_length(2 * size - 1), [size]) for size in sorted(graphs)]
    if len(apart) < 2:
        return apart
    together = fast_length(2 * max(graphs) - 1)
    separate = sum(len(graphs[sizes[0]]) * length + CALL for length, sizes in apart)
    padded = sum(map(len, graphs.values())) * together + CALL
    return apart if separate <= padded else [(together, sorted(graphs))]


def _block(
    length: int, sizes: list[int], graphs: dict[int, list[int]], first: dict[int, int], device: torch.device
) -> Block:
    firsts = [start for size in sizes for start in graphs[size]]
    starts = on_device(firsts, device)
    kinds = [number for number, size in enumerate(sizes) for _ in graphs[size]]
    kernel, own = on_device(kinds, device), on_device([sizes[kind] for kind in kinds], device)[:, None]
    num_nodes = sum(sizes[kind] for kind in kinds)
    place = torch.arange(sizes[-1], device=device)
    rows = starts[:, None] + torch.minimum(place, own - 1)
    used = place < own if len(sizes) > 1 else None
    filters = tuple(first[size] for size in sizes)
    return Block(length, tuple(sizes), filters, firsts[0], num_nodes, kernel, rows, used)
