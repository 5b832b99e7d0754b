"""Circular convolutions along the nodes of each graph, by FFT, and gates between them (GECO, Sancak et al., eq. 3).

Every graph is convolved with its own filter, of its own length, and nothing crosses graphs (`SizeGroups`). Batches of
small graphs are summed up place by place instead (`direct_convolution`).

All steps of some channels are computed before those of the next ones: what lies between them stays in the cache and is
never stored. The backward pass computes it again. A channel's nodes stand one behind the other in memory, as transforms
want them; their outputs have the shape (N, C) all the same, with the strides of a transposed matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.direct_convolution import can_sum, direct_convolutions, direct_gradients
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.size_groups import Block, SizeGroups

# Numbers of all graphs and filters that are transformed at a time: 4 MB of float32 for either, which a CPU's cache
# holds; on a GPU 256 MB. A call computes its tables anew, the time of three channels: long transforms take at least ..
CHUNK_NUMBERS = {"cpu": 2**21}
CHUNK_NUMBERS_ELSEWHERE = 2**26
# .. FEW_CHANNELS, up to LARGEST_CHUNK: beyond 32 MB each tensor is mapped anew, which takes as long as to transform it.
FEW_CHANNELS, LARGEST_CHUNK = 8, 2**24


def circular_convolution(x: Tensor, filters: Tensor, groups: SizeGroups) -> Tensor:
    r"""Convolve each channel of each graph with the filter of the graph's size, around its end (GECO, equation 3).

    .. math:: y_t = \textstyle\sum_{i=0}^{n-1} x_i z_{(t - i) \bmod n}

    Takes C N log N; x and the filters are kept for the backward pass, nothing else. Half-precision inputs are computed
    in float32. Gradients flow to both.

    Args:
        x (Tensor): nodes, sorted by graph.
        filters (Tensor): filters of all sizes of graphs, one behind the other as ``groups.sizes``.
        groups (SizeGroups): the graphs, ``SizeGroups.of(context.ptr)``.

    Shapes:
        x (N, C), filters (sum of sizes, C); returns (N, C).

    Raises:
        ValueError: the filters have not one row for each place.
    """
    return _apply(x, filters, groups, Chain(1, 0, False))


def gated_convolutions(gates_and_value: Tensor, filters: Tensor, groups: SizeGroups, gate_first: bool) -> Tensor:
    r"""Convolve with one filter after the other, and multiply by gates (GECO, algorithm 1 or equation 4).

    With gates P_1 .. P_K and the value V: K times :math:`V \leftarrow P_i \odot (F_i * V)`, or, with ``gate_first``,
    K - 1 times :math:`V \leftarrow F_i * (P_i \odot V)`, and at last :math:`P_K \odot V`. Costs and gradients are those
    of `circular_convolution`: the two inputs are all that is kept.

    Args:
        gates_and_value (Tensor): P_1 .. P_K and V, side by side.
        filters (Tensor): F_1, F_2, .. side by side, rows as in `circular_convolution`.
        groups (SizeGroups): the graphs.
        gate_first (bool): multiply before the first convolution too; there is one filter less than gates then.

    Shapes:
        gates_and_value (N, (K + 1) C), filters (sum of sizes, K C), or (.., (K - 1) C) with ``gate_first``; (N, C).

    Raises:
        ValueError: the filters have not one row for each place, or not the columns of these gates.
    """
    dim = (gates_and_value.size(1) - filters.size(1)) // (2 if gate_first else 1)
    num_filters = filters.size(1) // max(1, dim)
    return _apply(gates_and_value, filters, groups, Chain(num_filters, num_filters + gate_first, gate_first))


class Chain(NamedTuple):
    """What is computed of each channel: filters, gates, and whether a gate comes first."""

    num_filters: int
    num_gates: int
    gate_first: bool

    def columns(self, part: slice, dim: int) -> tuple[list[slice], list[slice]]:
        """Return the columns of the gates and, behind them, of the value of some channels; and those of the filters."""
        moved = [slice(part.start + dim * n, part.stop + dim * n) for n in range(self.num_gates + 1)]
        return moved, moved[: self.num_filters]

    def behind(self, gates: list[Tensor]) -> list[Tensor | None]:
        """Return the gate behind each convolution."""
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
    """Yield the channels of one chunk at a time."""
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
    """Write graphs (c, b, n) into their nodes (c, N), in place."""
    if block.nodes is not None:
        out[:, block.nodes] = values[:, 0]
    else:
        rows, values = _of_nodes(block, values)
        out.index_copy_(1, rows, values.to(out.dtype))


def _of_nodes(block: Block, values: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes (U,), and what values (c, b, n) hold for them, (c, U)."""
    rows, values = block.rows.flatten(), values.flatten(1)
    return (rows, values) if block.places is None else (rows[block.places], values[:, block.places])


def _spectrum(values: Tensor, block: Block) -> Tensor:
    """Transform the nodes of each graph: (c, b, n) -> (c, b, length / 2 + 1)."""
    return torch.fft.rfft(values if block.used is None else values * block.used, block.length)


def _kernel_spectrum(filters: Tensor, block: Block) -> Tensor:
    """Transform the kernel of each graph: (c, sum of sizes) -> (c, b, length / 2 + 1), or (c, 1, ..) of one size."""
    if block.direct:
        return torch.fft.rfft(_wide(filters[:, block.own_taps])[:, None])
    tap, has_one, _ = block.taps
    found = torch.fft.rfft(_wide(filters.index_select(1, tap.flatten())).unflatten(1, tap.shape) * has_one)
    return found if len(block.sizes) == 1 else found.index_select(1, block.kernel)


def _inverse(spectrum: Tensor, block: Block) -> Tensor:
    """Transform back: (c, b, length / 2 + 1) -> (c, b, n)."""
    return torch.fft.irfft(spectrum, block.length)[..., : block.rows.size(1)]


class _Convolutions(Function):
    """N nodes, C channels, K filters; all steps of some channels of some graphs at a time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor, groups: SizeGroups, chain: Chain) -> Tensor:
        """Shapes: values (N, (gates + 1) C), filters (sum of sizes, K C); returns (N, C)."""
        ctx.save_for_backward(values, filters)
        ctx.groups, ctx.chain, ctx.direct = groups, chain, can_sum(values, filters, groups)
        if ctx.direct:
            return direct_convolutions(values, filters, groups, chain)
        x, taps = values.mT, filters.mT
        out = torch.empty(x.size(0) // (chain.num_gates + 1), x.size(1), dtype=x.dtype, device=x.device)
        for block in groups.blocks:
            for part in _channels(block, len(out), x.device.type):
                own, kernels = chain.columns(part, len(out))
                *gates, value = (_take(x[one], block) for one in own)
                value = gates[0] * value if chain.gate_first else value
                for one, gate in zip(kernels, chain.behind(gates), strict=True):
                    product = _spectrum(value, block).mul_(_kernel_spectrum(taps[one], block))
                    value = _inverse(product, block)
                    value = value if gate is None else value.mul_(gate)
                _put(out[part], value, block)
        return out.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the steps of some channels again, and go back through them."""
        values, filters = ctx.saved_tensors
        groups, chain = ctx.groups, ctx.chain
        refuse_second_derivative("circular convolution")
        if ctx.direct:
            return *direct_gradients(values, filters, grad, groups, chain), None, None
        x, taps, grad = values.mT, filters.mT, grad.mT
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        grad_taps = torch.zeros(taps.shape, dtype=taps.dtype, device=taps.device)
        for block in groups.blocks:
            for part in _channels(block, len(grad), x.device.type):
                own, kernels = chain.columns(part, len(grad))
                pieces = [_take(x[one], block) for one in own]
                given = _take(grad[part], block)
                found, of_filters = _back(given, pieces, [taps[one] for one in kernels], block, chain)
                for one, value in zip(own, found, strict=True):
                    _put(grad_x[one], value, block)
                for one, product in zip(kernels, of_filters, strict=True):
                    _add_to_filters(grad_taps[one], product, block)
        return grad_x.mT, grad_taps.mT, None, None


def _back(
    grad: Tensor, pieces: list[Tensor], taps: list[Tensor], block: Block, chain: Chain
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of gates and value, and the spectra of those of the filters of each graph.

    Shapes: grad and each of pieces (c, b, n), each of taps (c, sum of sizes); (c, b, n), (c, b, length / 2 + 1).
    """
    *gates, first = pieces
    value, behind = gates[0] * first if chain.gate_first else first, chain.behind(gates)
    steps = []
    for number, (one, gate) in enumerate(zip(taps, behind, strict=True)):
        spectrum, kernel = _spectrum(value, block), _kernel_spectrum(one, block)
        convolved = None if gate is None else _inverse(spectrum * kernel, block)
        steps.append((spectrum.conj_physical_(), kernel.conj_physical_(), convolved))
        value = gate * convolved if number + 1 < len(taps) else None
    of_gates, of_filters = [], []
    for (spectrum, kernel, convolved), gate in zip(reversed(steps), reversed(behind), strict=True):
        if gate is not None:
            of_gates.insert(0, convolved.mul_(grad))
            grad = grad * gate
        found = _spectrum(grad, block)
        of_filters.insert(0, spectrum.mul_(found))
        grad = _inverse(found.mul_(kernel), block)
    if chain.gate_first:
        of_gates.insert(0, grad * first)
        grad = grad * gates[0]
    return [*of_gates, grad], of_filters


def _add_to_filters(total: Tensor, product: Tensor, block: Block) -> None:
    """Add the gradient of filters (c, sum of sizes) from its spectrum in each graph (c, b, length / 2 + 1)."""
    if len(block.kernel) > 1:
        summed = product.new_zeros(len(product), len(block.sizes), product.size(2))
        product = summed.index_add_(1, block.kernel, product)
    taps = torch.fft.irfft(product, block.length).to(total.dtype)  # (c, sizes, length)
    if block.direct:
        total[:, block.own_taps] += taps[:, 0]
    else:
        tap, _, places = block.taps
        total.index_add_(1, tap.flatten()[places], taps.flatten(1)[:, places])
