"""Hyena operator of order 2 (Poli et al. 2023) on the sequence of nodes: the baseline of GECO's table 6.

As in the reference implementation: a short causal convolution behind the input map, a gate, a long causal convolution
whose implicit filter decays exponentially, a skip, a second gate, an output map. It is causal: a node depends on the
nodes before it.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.circular_convolution import circular_convolution
from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.head_arguments import check_dropout
from graphgps_kmip.attention.long_filter import (
    FilterLayers,
    FilterPlaces,
    FilterShape,
    FilterWidth,
    LongFilter,
    Segments,
    place_features,
)
from graphgps_kmip.attention.size_groups import SizeGroups
from graphgps_kmip.ranges import whole
from graphgps_kmip.registry import register

SHARE_LEFT = 1e-2  # a filter has decayed to this at ..
FASTEST, SLOWEST = 0.3, 1.5  # .. this fraction of the sequence, from its first channel to its last


def causal_convolution(x: Tensor, filters: Tensor, ptr: Tensor, sizes: tuple[int, ...]) -> Tensor:
    r"""Convolve each graph with the filter of its size, :math:`y_t = \sum_{i \le t} x_i z_{t-i}`.

    A circular convolution of each graph with as many zeros behind it.

    Args:
        x (Tensor): nodes, sorted by graph.
        filters (Tensor): filters of all sizes, one behind the other.
        ptr (Tensor): first node of each graph, and N at the end.
        sizes (tuple[int, ...]): distinct sizes above 0, ascending.

    Shapes: x (N, C), filters (sum of sizes, C), ptr (B+1,); returns (N, C).
    """
    place, tap = (_with_as_many_zeros(count) for count in (ptr.diff(), torch.tensor(sizes, device=x.device).long()))
    padded, taps = (
        one.new_zeros(2 * len(one), one.size(1)).index_copy(0, at, one) for one, at in ((x, place), (filters, tap))
    )
    return circular_convolution(padded, taps, SizeGroups.of(2 * ptr))[place]


def _with_as_many_zeros(counts: Tensor) -> Tensor:
    """Return where rows go when each group of (counts) rows gets as many zeros behind it."""
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(len(first), device=counts.device) + first


@register("attention", "Hyena", breaks=("permutation",))
class HyenaAttention(nn.Module):
    r"""Hyena operator along the order of the nodes of each graph, in place of an attention; it reads no edges.

    .. math:: y = W_o (x_0 \odot (z * (x_1 \odot v) + D \odot x_1 \odot v)), \qquad [x_0, x_1, v] = s * W_i x

    with a short filter s, and a long one z that a network makes (`LongFilter`) and that decays exponentially, from
    channel to channel more slowly.

    Args:
        dim (int): channels in and out.
        num_heads (int): not used, for a common signature.
        dropout (float, optional): probability to drop a number before the long convolution, in training only.
            (default: 0.0)
        short_width (int, optional): taps of the short convolution. (default: 3)
        decay (bool, optional): let the filter decay. (default: True)
        filter_width, filter_places, filter_layers (int, optional): network of the filter, see `FilterShape`. (default:
            64, 33, 2)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,  # noqa: ARG002
        dropout: float = 0.0,
        *,
        short_width: Annotated[int, whole(1, 10_000)] = 3,
        decay: bool = True,
        filter_width: FilterWidth = FilterShape.width,
        filter_places: FilterPlaces = FilterShape.places,
        filter_layers: FilterLayers = FilterShape.layers,
    ) -> None:
        super().__init__()
        self.dim, self.decay = dim, decay
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.short = nn.Parameter(torch.randn(short_width, 3 * dim) / math.sqrt(short_width))
        self.short_bias = nn.Parameter(torch.zeros(3 * dim))
        self.filter = LongFilter(dim, 1, shape=FilterShape(filter_width, filter_places, filter_layers), norm="none")
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Mix the nodes of each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        gate, inner_gate, value = self._short(self.project(x), context).split(self.dim, dim=1)
        value = self.dropout(value * inner_gate)
        sizes = context.size_groups.sizes
        value = causal_convolution(value, self._filters(sizes), context.ptr, sizes) + value * self.skip
        return self.out(value * gate)

    def _short(self, x: Tensor, context: GraphContext) -> Tensor:
        """Convolve causally with the short filter."""
        place = torch.arange(len(x), device=x.device) - context.ptr[context.batch]
        out = x * self.short[0] + self.short_bias
        for tap in range(1, min(len(self.short), len(x))):
            earlier = x.roll(tap, 0) * (place >= tap)[:, None]  # of the same graph
            out = out + earlier * self.short[tap]
        return out

    def _filters(self, sizes: tuple[int, ...]) -> Tensor:
        """The filters of all sizes one behind the other, (sum of sizes, C)."""
        taps = self.filter(sizes)
        if not self.decay:
            return taps
        rate = torch.linspace(1 / FASTEST, 1 / SLOWEST, self.dim, device=taps.device) * -math.log(SHARE_LEFT)
        time = place_features(Segments.of(sizes, taps.device), 1, taps)  # t / (n - 1)
        return taps * torch.exp(-time * rate.to(taps.dtype))
