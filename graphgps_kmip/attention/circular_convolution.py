"""Circular convolution along the nodes of each graph, by FFT: GECO (Sancak et al.), equation 3, for ragged batches.

Every graph is convolved with its own filter, of its own length, and nothing crosses graphs (`SizeGroups`). The backward
pass transforms again instead of keeping spectra.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.attention.size_groups import Block, SizeGroups
from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.errors import InputError

# Numbers that are transformed at a time; there are some six such tensors: 100 MB of float32, on a GPU 1.6 GB.
CHUNK_NUMBERS = {"cpu": 2**22}
CHUNK_NUMBERS_ELSEWHERE = 2**26


def circular_convolution(x: Tensor, filters: Tensor, groups: SizeGroups) -> Tensor:
    r"""Convolve each channel of each graph with the filter of the graph's size, around its end (GECO, equation 3).

    .. math:: y_t = \textstyle\sum_{i=0}^{n-1} x_i z_{(t - i) \bmod n}

    Takes C N log N; x and the filters are kept for the backward pass, nothing else. Half-precision inputs are computed
    in float32. Gradients flow to both, as often as wanted (a second derivative keeps the spectra).

    Args:
        x (Tensor): nodes, sorted by graph.
        filters (Tensor): filters of all sizes of graphs, one behind the other as ``groups.sizes``.
        groups (SizeGroups): the graphs, ``SizeGroups.of(context.ptr)``.

    Shapes:
        x (N, C), filters (sum of sizes, C); returns (N, C).

    Raises:
        ValueError: the filters have not one row for each place.
    """
    if filters.shape != (groups.num_rows, x.size(1)):
        raise InputError(
            f"filters must have shape {(groups.num_rows, x.size(1))} for graphs of sizes {list(groups.sizes)[:10]}, "
            f"got {tuple(filters.shape)}: give one row for each place in a graph of each size"
        )
    return _CircularConvolution.apply(x, filters, groups)


def _channels(block: Block, x: Tensor) -> Iterator[slice]:
    """Yield the channels of one chunk at a time."""
    most = CHUNK_NUMBERS.get(x.device.type, CHUNK_NUMBERS_ELSEWHERE)
    step = max(1, most // (block.length * (len(block.kernel) + len(block.sizes))))
    for start in range(0, x.size(1), step):
        yield slice(start, start + step)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _spectrum(x: Tensor, block: Block) -> Tensor:
    """Transform the nodes of each graph: (N, c) -> (b, c, length / 2 + 1)."""
    if block.nodes is not None:
        values = _wide(x[block.nodes])[None]
    else:
        values = _wide(x[block.rows])  # (b, n, c)
        values = values if block.used is None else values * block.used[..., None]
    return torch.fft.rfft(values.mT, block.length)


def _kernel_spectrum(filters: Tensor, block: Block) -> Tensor:
    """Transform the kernel of each size: (sum of sizes, c) -> (sizes, c, length / 2 + 1)."""
    if block.direct:
        return torch.fft.rfft(_wide(filters[block.own_taps])[None].mT)
    tap, has_one = block.taps
    return torch.fft.rfft((_wide(filters)[tap] * has_one[..., None]).mT)


def _nodes(out: Tensor, values: Tensor, block: Block) -> Tensor:
    """Write transformed graphs (b, c, length) into the rows of their nodes, (N, c)."""
    values = values[..., : block.rows.size(1)].mT  # (b, n, c)
    if block.used is None:
        return out.index_copy(0, block.rows.flatten(), values.flatten(0, 1))
    return out.index_copy(0, block.rows[block.used], values[block.used])


def _plain(x: Tensor, filters: Tensor, groups: SizeGroups) -> Tensor:
    """The convolution in differentiable operations, all channels at once."""
    out = _wide(torch.zeros_like(x))
    for block in groups.blocks:
        product = _spectrum(x, block) * _kernel_spectrum(filters, block)[block.kernel]
        out = _nodes(out, torch.fft.irfft(product, block.length), block)
    return out.to(x.dtype)


class _CircularConvolution(Function):
    """N nodes, C channels; spectra of some channels of some graphs at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor, groups: SizeGroups) -> Tensor:
        """Shapes: x (N, C), filters (sum of sizes, C); returns (N, C)."""
        ctx.save_for_backward(x, filters)
        ctx.groups = groups
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for block in groups.blocks:
            for part in _channels(block, x):
                kernel = _kernel_spectrum(filters[:, part], block)
                product = _spectrum(x[:, part], block) * kernel[block.kernel]
                _write(out[:, part], torch.fft.irfft(product, block.length), block)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Correlate the gradient with the filters, and with the nodes."""
        x, filters = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(_plain, groups=ctx.groups)
            return *differentiable_gradients(plain, (x, filters), (grad,)), None
        need_x, need_filters, _ = ctx.needs_input_grad
        grad_x = torch.empty_like(x, memory_format=torch.contiguous_format) if need_x else None
        grad_filters = torch.zeros_like(filters) if need_filters else None
        for block in ctx.groups.blocks:
            for part in _channels(block, x):
                found = _spectrum(grad[:, part], block)
                if need_x:
                    kernel = _kernel_spectrum(filters[:, part], block)
                    product = found * kernel[block.kernel].conj()
                    _write(grad_x[:, part], torch.fft.irfft(product, block.length), block)
                if need_filters:
                    _add_to_filters(grad_filters[:, part], found, x[:, part], block)
        return grad_x, grad_filters, None


def _write(out: Tensor, values: Tensor, block: Block) -> None:
    """Write transformed graphs into the rows of their nodes, in place."""
    values = values[..., : block.rows.size(1)].mT.to(out.dtype)
    if block.nodes is not None:
        out[block.nodes] = values[0]
    elif block.used is None:
        out[block.rows] = values
    else:
        out[block.rows[block.used]] = values[block.used]


def _add_to_filters(total: Tensor, found: Tensor, x: Tensor, block: Block) -> None:
    """Add the gradient of the filters (sum of sizes, c), from the spectrum of the gradient of the output."""
    product = found * _spectrum(x, block).conj()  # (b, c, f)
    if len(block.kernel) > 1:
        summed = product.new_zeros(len(block.sizes), *product.shape[1:])
        product = summed.index_add_(0, block.kernel, product)
    taps = torch.fft.irfft(product, block.length).mT.to(total.dtype)  # (sizes, length, c)
    if block.direct:
        total[block.own_taps] += taps[0]
    else:
        tap, has_one = block.taps
        total.index_add_(0, tap[has_one], taps[has_one])
