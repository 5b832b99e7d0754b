"""Circular convolutions along the nodes of each graph, by FFT, and gates between them (GECO, Sancak et al., eq. 3).

Every graph is convolved with the filter of its size (`SizeGroups`). Batches of small graphs are summed place by place
in a C loop (``native/direct_convolution.c``), where transforms take less time than the calls around them. All steps of
some channels come before those of the next, to stay in the cache; outputs (N, C) are transposed in memory.

A size that is a product of 2, 3, 5 and 7 is the length of the transform; any other size n needs a two-sided kernel of a
fast length of at least 2n - 1: transforms of prime length take up to 40 times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import host_copy, on_device
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import refuse_second_derivative

CHUNK_NUMBERS = {"cpu": 2**21}  # of all graphs and filters that are transformed at a time: a cache holds them
CHUNK_NUMBERS_ELSEWHERE = 2**26
# A call makes tables in the time of three channels. Beyond 32 MB each tensor is mapped anew, which takes as long again.
FEW_CHANNELS, LARGEST_CHUNK = 8, 2**24
SUM_PAIRS = 150  # pairs of nodes that the C loop sums in the time in which one number is transformed, there and back
THREAD_WORK = 400_000  # products that take about as long as starting a thread (20 us)

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


def circular_convolution(x: Tensor, filters: Tensor, groups: SizeGroups) -> Tensor:
    r"""Convolve each channel of each graph with the filter of the graph's size, around its end (GECO, equation 3).

    .. math:: y_t = \textstyle\sum_{i=0}^{n-1} x_i z_{(t - i) \bmod n}

    Takes C N log N time. Half-precision inputs are computed in float32. Gradients flow to both.

    Args:
        x (Tensor): nodes, sorted by graph.
        filters (Tensor): filters of all sizes of graphs, in the order of ``groups.sizes``.
        groups (SizeGroups): the graphs, ``SizeGroups.of(context.ptr)``.

    Shapes: x (N, C), filters (sum of sizes, C); returns (N, C).
    """
    return _apply(x, filters, groups, Chain(1, 0, False))


def gated_convolutions(gates_and_value: Tensor, filters: Tensor, groups: SizeGroups, gate_first: bool) -> Tensor:
    r"""Convolve with one filter after the other, and multiply by gates (GECO, algorithm 1 or equation 4).

    With gates P_1 .. P_K and the value V: K times :math:`V \leftarrow P_i \odot (F_i * V)`, or, with ``gate_first``,
    K - 1 times :math:`V \leftarrow F_i * (P_i \odot V)`, and at last :math:`P_K \odot V`. Costs and gradients are those
    of `circular_convolution`.

    Args:
        gates_and_value (Tensor): P_1 .. P_K and V, side by side.
        filters (Tensor): F_1, F_2, .. side by side, rows as in `circular_convolution`.
        groups (SizeGroups): the graphs.
        gate_first (bool): multiply before the first convolution too; there is one filter less than gates then.

    Shapes:
        gates_and_value (N, (K + 1) C), filters (sum of sizes, K C), or (.., (K - 1) C) with ``gate_first``; (N, C).
    """
    dim = (gates_and_value.size(1) - filters.size(1)) // (2 if gate_first else 1)
    num_filters = filters.size(1) // max(1, dim)
    return _apply(gates_and_value, filters, groups, Chain(num_filters, num_filters + gate_first, gate_first))


class Chain(NamedTuple):
    """What is computed of each channel: filters, gates, and whether a gate comes first."""

    num_filters: int
    num_gates: int
    gate_first: bool

    def columns(self, part: slice, dim: int) -> list[slice]:
        """Return the columns of the gates and then of the value of some channels; the first ones are the filters'."""
        return [slice(part.start + dim * n, part.stop + dim * n) for n in range(self.num_gates + 1)]

    def gates_after(self, gates: list[Tensor]) -> list[Tensor | None]:
        """Return the gate after each convolution."""
        return gates[self.gate_first :] if gates else [None] * self.num_filters


def _apply(values: Tensor, filters: Tensor, groups: SizeGroups, chain: Chain) -> Tensor:
    dim = values.size(1) // (chain.num_gates + 1)
    expected = groups.num_rows, chain.num_filters * dim
    if filters.shape != expected or values.size(1) != dim * (chain.num_gates + 1):
        raise InputError(
            f"filters must have shape {expected} for graphs of sizes {list(groups.sizes)[:10]}, "
            f"got {tuple(filters.shape)}: give one row for each place in a graph of each size"
        )
    return _Convolutions.apply(values, filters, groups, chain)


def _channels(block: Block, dim: int, device: str) -> Iterator[slice]:
    numbers = block.length * (len(block.kernel) + len(block.sizes))
    most = CHUNK_NUMBERS.get(device, CHUNK_NUMBERS_ELSEWHERE)
    step = max(1, most // numbers, min(FEW_CHANNELS, LARGEST_CHUNK // numbers))
    for start in range(0, dim, step):
        yield slice(start, min(start + step, dim))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _take(x: Tensor, block: Block) -> Tensor:
    """Return the nodes of each graph: (c, N) -> (c, b, n); those beyond the size of a graph repeat its last one."""
    if block.nodes is not None:
        return _wide(x[:, block.nodes])[:, None].contiguous()
    return _wide(x.index_select(1, block.rows.flatten()).unflatten(1, block.rows.shape))


def _put(out: Tensor, values: Tensor, block: Block) -> None:
    if block.nodes is not None:
        out[:, block.nodes] = values[:, 0]
    else:
        rows, values = block.rows.flatten(), values.flatten(1)
        if block.places is not None:
            rows, values = rows[block.places], values[:, block.places]
        out.index_copy_(1, rows, values.to(out.dtype))


def _spectrum(values: Tensor, block: Block) -> Tensor:
    """Transform the nodes of each graph: (c, b, n) -> (c, b, length / 2 + 1)."""
    return torch.fft.rfft(values if block.used is None else values * block.used, block.length)


def _kernel_spectrum(filters: Tensor, block: Block) -> Tensor:
    """Transform the kernel of each graph: (c, sum of sizes) -> (c, b, length / 2 + 1), or (c, 1, ..) of one size."""
    if block.direct:
        return torch.fft.rfft(_wide(filters[:, block.tap_rows])[:, None])
    tap, has_tap, _ = block.taps
    spectrum = torch.fft.rfft(_wide(filters.index_select(1, tap.flatten())).unflatten(1, tap.shape) * has_tap)
    return spectrum if len(block.sizes) == 1 else spectrum.index_select(1, block.kernel)


def _inverse(spectrum: Tensor, block: Block) -> Tensor:
    return torch.fft.irfft(spectrum, block.length)[..., : block.rows.size(1)]


class _Convolutions(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor, groups: SizeGroups, chain: Chain) -> Tensor:
        """Shapes: values (N, (gates + 1) C), filters (sum of sizes, K C); returns (N, C)."""
        ctx.save_for_backward(values, filters)
        ctx.groups, ctx.chain, ctx.direct = groups, chain, can_sum(values, filters, groups)
        dim = values.size(1) // (chain.num_gates + 1)
        if ctx.direct:
            out = values.new_empty(len(values), dim)
            _sum_directly(values, filters, None, groups, chain, (out, None, None))
            return out
        x, taps = values.mT, filters.mT
        out = torch.empty(dim, x.size(1), dtype=x.dtype, device=x.device)
        for block in groups.blocks:
            for part in _channels(block, dim, x.device.type):
                columns = chain.columns(part, dim)
                *gates, value = (_take(x[column], block) for column in columns)
                value = gates[0] * value if chain.gate_first else value
                for column, gate in zip(columns, chain.gates_after(gates), strict=False):
                    product = _spectrum(value, block).mul_(_kernel_spectrum(taps[column], block))
                    value = _inverse(product, block)
                    value = value if gate is None else value.mul_(gate)
                _put(out[part], value, block)
        return out.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, filters = ctx.saved_tensors
        groups, chain = ctx.groups, ctx.chain
        refuse_second_derivative("circular convolution")
        if ctx.direct:
            grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (values, filters)]
            _sum_directly(values, filters, grad, groups, chain, (None, *grads))
            return *grads, None, None
        x, taps, grad = values.mT, filters.mT, grad.mT
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_taps = torch.zeros(taps.shape, dtype=taps.dtype, device=taps.device)
        for block in groups.blocks:
            for part in _channels(block, len(grad), x.device.type):
                columns = chain.columns(part, len(grad))
                pieces = [_take(x[column], block) for column in columns]
                kernels = [taps[column] for column in columns[: chain.num_filters]]
                value_grads, filter_grads = _back(_take(grad[part], block), pieces, kernels, block, chain)
                for column, value in zip(columns, value_grads, strict=True):
                    _put(grad_x[column], value, block)
                for column, product in zip(columns, filter_grads, strict=False):
                    _add_to_filters(grad_taps[column], product, block)
        return grad_x.mT, grad_taps.mT, None, None


def _back(
    grad: Tensor, pieces: list[Tensor], taps: list[Tensor], block: Block, chain: Chain
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of gates and value (c, b, n), and the spectra of those of the filters of each graph."""
    *gates, first = pieces
    value, gates_after = gates[0] * first if chain.gate_first else first, chain.gates_after(gates)
    steps = []
    for number, (filters, gate) in enumerate(zip(taps, gates_after, strict=True)):
        spectrum, kernel = _spectrum(value, block), _kernel_spectrum(filters, block)
        convolved = None if gate is None else _inverse(spectrum * kernel, block)
        steps.append((spectrum.conj_physical_(), kernel.conj_physical_(), convolved))
        value = gate * convolved if number + 1 < len(taps) else None
    gate_grads, filter_grads = [], []
    for (spectrum, kernel, convolved), gate in zip(reversed(steps), reversed(gates_after), strict=True):
        if gate is not None:
            gate_grads.insert(0, convolved.mul_(grad))
            grad = grad * gate
        transformed = _spectrum(grad, block)
        filter_grads.insert(0, spectrum.mul_(transformed))
        grad = _inverse(transformed.mul_(kernel), block)
    if chain.gate_first:
        gate_grads.insert(0, grad * first)
        grad = grad * gates[0]
    return [*gate_grads, grad], filter_grads


def _add_to_filters(total: Tensor, product: Tensor, block: Block) -> None:
    if len(block.kernel) > 1:
        summed = product.new_zeros(len(product), len(block.sizes), product.size(2))
        product = summed.index_add_(1, block.kernel, product)
    taps = torch.fft.irfft(product, block.length).to(total.dtype)  # (c, sizes, length)
    if block.direct:
        total[:, block.tap_rows] += taps[:, 0]
    else:
        tap, _, places = block.taps
        total.index_add_(1, tap.flatten()[places], taps.flatten(1)[:, places])


def can_sum(values: Tensor, filters: Tensor, groups: SizeGroups) -> bool:
    """Whether the C loop supports these tensors, and takes less time than transforms."""
    fits = values.device.type == "cpu" and values.dtype == filters.dtype
    fits &= values.dtype in (torch.float32, torch.float64) and groups.num_pairs <= SUM_PAIRS * groups.num_transformed
    return fits and unavailable_reason("direct_convolution", *dtype_flags(values.dtype)) is None


def _sum_directly(
    values: Tensor,
    filters: Tensor,
    grad: Tensor | None,
    groups: SizeGroups,
    chain: Chain,
    results: Sequence[Tensor | None],
) -> None:
    """Fill results in C: the output, or, from its gradient, those of values and filters."""
    dim = values.size(1) // (chain.num_gates + 1)
    # kept until the call has returned: a pointer does not keep a tensor alive
    inputs = [None if x is None else x.contiguous() for x in (values, filters, grad)]
    failed = load("direct_convolution", *dtype_flags(values.dtype)).direct_convolution(
        *map(pointer, (*inputs, *groups.table)),
        ctypes.c_long(len(groups.sizes)),
        *(dim, chain.num_filters, chain.num_gates, int(chain.gate_first)),
        max(1, min(torch.get_num_threads(), groups.num_pairs * filters.size(1) // THREAD_WORK)),
        *map(pointer, results),
    )
    if failed:
        raise MemoryError(f"not enough memory for the convolutions of a graph of {groups.sizes[-1]} nodes")
