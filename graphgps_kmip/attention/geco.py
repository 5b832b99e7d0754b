"""GECO (Sancak et al.): propagation to neighbours, then gated convolutions over all nodes, in place of attention.

There is no public code. Where the paper is silent this follows Hyena (Poli et al. 2023), the baseline of its table 6
(`HyenaAttention`), and where it has two forms both are options; docs/geco.md lists them.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.head_arguments import check_choice, check_dropout, check_least
from graphgps_kmip.attention.long_filter import NORMS, FilterShape, LongFilter, Segments, place_features
from graphgps_kmip.ops.circular_convolution import can_sum, circular_convolution, gated_convolutions
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.propagation import ADJACENCIES, adjacency, propagate
from graphgps_kmip.ops.size_groups import SizeGroups
from graphgps_kmip.ranges import SOME_LAYERS, WIDTH, Choice, whole
from graphgps_kmip.registry import register

FORMS = ("gate_after", "gate_first")
LOCAL_BLOCKS = ("propagation", "convolution", "none")
FilterWidth, FilterPlaces = Annotated[int, WIDTH], Annotated[int, whole(3, 1001)]
FilterLayers = Annotated[int, SOME_LAYERS]


class GlobalContextBlock(nn.Module):
    r"""Gated convolutions over all nodes of each graph (GECO, algorithm 1 or equation 4).

    With one linear map to gates P_1 .. P_K and values V, and filters F of the length of each graph:
    ``gate_after`` is algorithm 1, K times :math:`V \leftarrow P_i \odot (F_i * V)`;
    ``gate_first`` is equation 4, K - 1 times :math:`V \leftarrow F_i * (P_i \odot V)`, and :math:`P_K \odot V`.

    Arguments are those of `GECOAttention`, and dim_in, the channels in.

    Shapes: x (N, dim_in), groups -> (N, dim).
    """

    def __init__(self, dim_in: int, dim: int, *, order: int, form: str, shape: FilterShape, filter_norm: str) -> None:
        super().__init__()
        check_choice(FORMS, form=form)
        check_least(1 if form == "gate_after" else 2, **{f"order with the form {form}": order})
        self.dim, self.order, self.form = dim, order, form
        self.project = nn.Linear(dim_in, (order + 1) * dim)
        num_filters = order if form == "gate_after" else order - 1
        self.filters = LongFilter(dim, num_filters, shape=shape, norm=filter_norm)

    def forward(self, x: Tensor, groups: SizeGroups) -> Tensor:
        """Mix the nodes of each graph."""
        if can_sum(x, x, groups):
            gates_and_value = self.project(x)
        else:  # the nodes of a channel are contiguous in a product of this form, as transforms read them
            gates_and_value = torch.addmm(self.project.bias[:, None], self.project.weight, x.mT).mT
        return gated_convolutions(gates_and_value, self.filters(groups.sizes), groups, self.form == "gate_first")

    def extra_repr(self) -> str:
        """Return order and form."""
        return f"order={self.order}, form={self.form!r}"


@register("attention", "GECO", breaks=("permutation",))  # nodes are mixed along their order
class GECOAttention(nn.Module):
    r"""GECO layer (algorithms 1, 3 and 5): local block, batch norm, global block; in place of an attention.

    .. math:: x' = GCB(BatchNorm([x, \hat A x]))

    Each graph is convolved along the order of its nodes: cyclic shifts of that order commute with the layer, other
    orders give other outputs. Time is that of K N log N + M numbers, memory that of K N + M.

    Args:
        dim (int): channels in and out.
        num_heads (int): not used, for a common signature.
        dropout (float, optional): probability to drop an output, in training only. (default: 0.0)
        order (int, optional): gates K; the paper has 2 throughout. (default: 2)
        form (str, optional): ``gate_after`` (algorithm 1) or ``gate_first`` (equation 4). (default: ``gate_after``)
        local (str, optional): ``propagation``, ``convolution`` along the order of nodes (the paper's ablation), or
            ``none``. (default: ``propagation``)
        adjacency (str, optional): of the propagation: ``symmetric``, ``mean`` or ``sum``. (default: ``symmetric``)
        conv_width (int, optional): width of the local convolution. (default: 10)
        batch_norm (bool, optional): normalise after the local block. (default: True)
        filter_width, filter_places, filter_layers (int, optional): network of the filters, see `FilterShape`. (default:
            64, 33, 2)
        filter_norm (str, optional): ``l1``, ``l2`` or ``none``, see `LongFilter`. (default: ``l1``)

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
        order: Annotated[int, whole(1, 16)] = 2,
        form: Annotated[str, Choice(FORMS)] = "gate_after",
        local: Annotated[str, Choice(LOCAL_BLOCKS)] = "propagation",
        adjacency: Annotated[str, Choice(tuple(ADJACENCIES))] = "symmetric",
        conv_width: Annotated[int, whole(1, 10_000)] = 10,
        batch_norm: bool = True,
        filter_width: FilterWidth = FilterShape.width,
        filter_places: FilterPlaces = FilterShape.places,
        filter_layers: FilterLayers = FilterShape.layers,
        filter_norm: Annotated[str, Choice(tuple(NORMS))] = "l1",
    ) -> None:
        super().__init__()
        check_choice(LOCAL_BLOCKS, local=local)
        self.local, self.adjacency = local, adjacency
        self.convolution = NodeConvolution(dim, conv_width) if local == "convolution" else None
        width = dim if local == "none" else 2 * dim
        self.norm = nn.BatchNorm1d(width) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(check_dropout(dropout))
        shape = FilterShape(filter_width, filter_places, filter_layers)
        self.mix = GlobalContextBlock(width, dim, order=order, form=form, shape=shape, filter_norm=filter_norm)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Mix the nodes of each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        groups = context.size_groups
        if self.local == "convolution":
            x = torch.cat([x, self.convolution(x, groups)], 1)
        elif self.local == "propagation" and context.edge_index is None:
            x = torch.cat([x, torch.zeros_like(x)], 1)
        elif self.local == "propagation":
            wide = torch.promote_types(x.dtype, torch.float32)
            x = torch.cat([x, propagate(x, adjacency(context.edge_index, len(x), self.adjacency, wide))], 1)
        return self.dropout(self.mix(self.norm(x), groups))


class NodeConvolution(nn.Module):
    """Circular convolution of each channel with a short learned filter along the nodes: the local block of table 5.

    Taps are those of the places before a node and itself; those beyond the size of a graph wrap around.
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.randn(width, dim) / width**0.5)

    def forward(self, x: Tensor, groups: SizeGroups) -> Tensor:
        """Convolve."""
        segments = Segments.of(groups.sizes, x.device)
        first = segments.count.cumsum(0) - segments.count
        row = first + torch.arange(len(self.taps), device=x.device) % segments.count  # (sizes, width)
        filters = self.taps.new_zeros(groups.num_rows, x.size(1))
        filters = filters.index_add(0, row.flatten(), self.taps.repeat(len(groups.sizes), 1))
        return circular_convolution(x, filters, groups)


SHARE_LEFT = 1e-2  # a filter has decayed to this at ..
FASTEST, SLOWEST = 0.3, 1.5  # .. this fraction of the sequence, from its first channel to its last


def causal_convolution(x: Tensor, filters: Tensor, ptr: Tensor, sizes: tuple[int, ...]) -> Tensor:
    r"""Convolve each graph with the filter of its size, :math:`y_t = \sum_{i \le t} x_i z_{t-i}`, padded with zeros.

    Shapes: x (N, C), sorted by graph, filters of all distinct sizes above 0, ascending and concatenated (sum of sizes,
    C), ptr (B+1,); returns (N, C).
    """
    place, tap = (_places_with_zeros(count) for count in (ptr.diff(), torch.tensor(sizes, device=x.device).long()))
    padded, taps = (
        rows.new_zeros(2 * len(rows), rows.size(1)).index_copy(0, at, rows) for rows, at in ((x, place), (filters, tap))
    )
    return circular_convolution(padded, taps, SizeGroups.of(2 * ptr))[place]


def _places_with_zeros(counts: Tensor) -> Tensor:
    """Return where rows go when each group of rows is followed by as many zeros."""
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(len(first), device=counts.device) + first


@register("attention", "Hyena", breaks=("permutation",))
class HyenaAttention(nn.Module):
    r"""Hyena operator of order 2 (Poli et al. 2023) along the order of the nodes of each graph; it reads no edges.

    As in the reference implementation: a short causal convolution, a gate, a long one, a skip, a second gate.
    .. math:: y = W_o (x_0 \odot (z * (x_1 \odot v) + D \odot x_1 \odot v)), \qquad [x_0, x_1, v] = s * W_i x

    with a short filter s, and a long one z that a network makes (`LongFilter`) and that decays exponentially, from
    channel to channel more slowly.

    Args:
        dim (int): channels in and out.
        num_heads (int): not used, for a common signature.
        dropout (float, optional): probability to drop what the long convolution reads, in training. (default: 0.0)
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
        place = torch.arange(len(x), device=x.device) - context.ptr[context.batch]
        out = x * self.short[0] + self.short_bias
        for tap in range(1, min(len(self.short), len(x))):
            out = out + x.roll(tap, 0) * (place >= tap)[:, None] * self.short[tap]  # of the same graph
        return out

    def _filters(self, sizes: tuple[int, ...]) -> Tensor:
        taps = self.filter(sizes)
        if not self.decay:
            return taps
        rate = torch.linspace(1 / FASTEST, 1 / SLOWEST, self.dim, device=taps.device) * -math.log(SHARE_LEFT)
        time = place_features(Segments.of(sizes, taps.device), 1, taps)  # t / (n - 1)
        return taps * torch.exp(-time * rate.to(taps.dtype))
