"""GECO (Sancak et al.): propagation to neighbours, then gated convolutions over all nodes, in place of attention.

There is no public code. Where the paper is silent this follows Hyena (Poli et al. 2023), the baseline of its table 6
(`HyenaAttention`), and where it has two forms both are options; docs/geco.md lists them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.attention.head_arguments import check_choice, check_dropout, check_least
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.circular_convolution import SizeGroups, can_sum, circular_convolution, gated_convolutions
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.host_copies import on_device
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.propagation import ADJACENCIES, adjacency, propagate
from graphgps_kmip.ops.row_chunks import RowStage, map_rows
from graphgps_kmip.ranges import SOME_LAYERS, WIDTH, Choice, whole
from graphgps_kmip.registry import register

FORMS = ("gate_after", "gate_first")
LOCAL_BLOCKS = ("propagation", "convolution", "none")
FilterWidth, FilterPlaces = Annotated[int, WIDTH], Annotated[int, whole(3, 1001)]
FilterLayers = Annotated[int, SOME_LAYERS]

TINY = 1e-12  # least divisor; its square, in the gradient, is a float32 above 0
SUM_NUMBERS = 2**17  # of the gradient of sums at a time, which a cache holds
FEW_PLACES = 2048  # up to this number the network is computed at once: in chunks it would take as long


@dataclass(frozen=True)
class FilterShape:
    """Size of the network that makes long filters.

    Args:
        width (int, optional): channels of its hidden layers; Hyena has 64. (default: 64)
        places (int, optional): features of a place that it reads, odd: (places - 1) / 2 frequencies. (default: 33)
        layers (int, optional): hidden layers after the first one; Hyena has 2. (default: 2)
    """

    width: int = 64
    places: int = 33
    layers: int = 2


@dataclass(frozen=True)
class Segments:
    """Places of filters of several sizes: the filter of each place (P,), None of a single one, and the sizes (S, 1)."""

    sizes: tuple[int, ...]
    filter: Tensor | None
    count: Tensor

    @classmethod
    def of(cls, sizes: tuple[int, ...], device: torch.device) -> Segments:
        """Number the places of filters of these sizes."""
        count = on_device(sizes, device, torch.int64)
        number = torch.repeat_interleave(count, output_size=sum(sizes)) if len(sizes) != 1 else None
        return cls(sizes, number, count[:, None])

    def sums(self, x: Tensor) -> Tensor:
        """Add up the places of each filter: (P, D) -> (S, D)."""
        if self.filter is None:
            return x.sum(0, keepdim=True)
        return x.new_zeros(len(self.sizes), x.size(1)).index_add(0, self.filter, x)

    def spread(self, x: Tensor) -> Tensor:
        """Return the value of each place's filter: (S, D) -> (P, D), or (1, D) of a single filter."""
        return x if self.filter is None else x.index_select(0, self.filter)


def place_features(segments: Segments, dim: int, like: Tensor) -> Tensor:
    r"""Return what the network reads of each place t of each size n: t / (n - 1), and cosines and -sines.

    .. math:: [t / (n - 1), \cos(f_b 2 \pi t / n), -\sin(f_b 2 \pi t / n)]

    for (dim - 1) / 2 frequencies f evenly from 1e-4 to (dim - 1) / 2 - 1, as in Hyena. Angles are computed in float64:
    in float32 those of 10^6 nodes would be off by 1e-4.

    Shapes: returns (sum of sizes, dim), in the dtype and on the device of ``like``; dim is odd.
    """
    bands, device, count = (dim - 1) // 2, like.device, segments.count
    frequency = torch.linspace(1e-4, max(bands - 1, 1e-4), bands, dtype=torch.float64, device=device)
    place = torch.arange(sum(segments.sizes), device=device)[:, None] - segments.spread(count.cumsum(0) - count)
    angle = place * segments.spread(2 * math.pi / count.double()) * frequency
    out = torch.empty(len(place), dim, dtype=like.dtype, device=device)
    out[:, :1] = place / segments.spread(count - 1).clamp(min=1).double()
    out[:, 1 : 1 + bands], out[:, 1 + bands :] = angle.cos(), angle.sin().neg_()
    return out


def _divide_by_length(taps: Tensor, segments: Segments) -> Tensor:
    """Scale what varies to length 1, and the mean to its share of the root mean square, spread over all taps."""
    mean = segments.sums(taps) / segments.count
    varying = taps - segments.spread(mean)
    share = mean / _root(segments.sums(taps.square()) / segments.count)
    return varying / segments.spread(_root(segments.sums(varying.square()))) + segments.spread(share / segments.count)


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=TINY**2).sqrt()


class _DivideByAbsoluteSum(Function):
    """Divide each filter by its sum of absolute values, ``y = t / s``: saves y and s, for y has the sign of t."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, segments: Segments) -> Tensor:
        """Return the quotients, (P, D) -> (P, D)."""
        if segments.filter is None:
            total = torch.linalg.vector_norm(taps, 1, dim=0, keepdim=True)
        else:
            total = segments.sums(taps.abs())
        scaled = taps / segments.spread(total.clamp(min=TINY))
        ctx.save_for_backward(scaled, total)
        ctx.segments = segments
        return scaled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return ``(dy - sign(y) <y, dy>) / s``."""
        refuse_second_derivative("the norm of filters")
        scaled, total = ctx.saved_tensors
        if scaled.numel() <= SUM_NUMBERS:
            return _divide_gradient(scaled, total, grad, ctx.segments), None
        out = torch.empty_like(scaled)
        step = max(1, SUM_NUMBERS // max(1, len(scaled)))
        for start in range(0, scaled.size(1), step):
            part = slice(start, start + step)
            pieces = (tensor[:, part] for tensor in (scaled, total, grad))
            out[:, part] = _divide_gradient(*pieces, ctx.segments)
        return out, None


def _divide_gradient(scaled: Tensor, total: Tensor, grad: Tensor, segments: Segments) -> Tensor:
    inverse = total.clamp(min=TINY).reciprocal()
    along = segments.sums(scaled * grad) * (total > TINY)
    signed = -scaled.sign() * segments.spread(along * inverse)
    return signed.addcmul(grad, segments.spread(inverse))


# of (P, D), the taps of D filters of each size
NORMS: dict[str, Callable[[Tensor, Segments], Tensor]] = {
    "l1": lambda taps, segments: _DivideByAbsoluteSum.apply(taps, segments),
    "l2": _divide_by_length,
    "none": lambda taps, segments: taps,  # noqa: ARG005
}


class FilterNetwork(nn.Module):
    """Linear layers with sines of learned frequencies (Hyena) after each but the last: features of a place -> taps."""

    def __init__(self, dim_in: int, width: int, num_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in [dim_in] + [width] * num_hidden)
        self.frequency = nn.Parameter(torch.ones(width))
        self.taps = nn.Linear(width, dim_out, bias=False)

    def hidden(self, places: Tensor) -> Tensor:
        """Return what the last layer reads, (P, dim_in) -> (P, width)."""
        # sin(f (W x + b)): a product for each weight instead of each place
        folded = []
        for layer in self.layers:
            folded += [self.frequency[:, None] * layer.weight, self.frequency * layer.bias]
        if len(places) <= FEW_PLACES:
            return _sines(None, slice(None), [places], folded, None)
        stage = RowStage(_sines, max(places.size(1), len(self.frequency)), ((places, None),), tuple(folded))
        return map_rows([stage], len(places))


def _sines(x: None, part: slice, rows: list[Tensor], folded: list[Tensor], call: None) -> Tensor:  # noqa: ARG001
    out = rows[0]
    for weight, bias in zip(folded[::2], folded[1::2], strict=True):
        out = linear(out, weight, bias).sin()
    return out


class LongFilter(nn.Module):
    """Filters as long as each graph, from a network of the place.

    ``l1``, an option of Hyena's code, divides by the sum of absolute values: no output exceeds the largest input.
    ``l2`` gives the taps without their mean the Euclidean length 1, and the mean a sum of at most 1: uncorrelated and
    constant inputs keep their scale. ``none``: outputs grow like the root of n or faster.

    Shapes: sizes of graphs -> K filters of C channels side by side, (sum of sizes, K C).

    Raises:
        ValueError: the number of features of a place is even, or no norm has this name.
    """

    def __init__(self, dim: int, num_filters: int = 2, *, shape: FilterShape = FilterShape(), norm: str = "l1") -> None:  # noqa: B008
        super().__init__()
        if shape.places < 3 or shape.places % 2 == 0:
            raise InputError(f"filter_places must be odd and 3 or more (t, cosines and sines), got {shape.places}")
        look_up(NORMS, norm, "filter_norm")
        self.norm, self.dim_place = norm, shape.places
        self.network = FilterNetwork(shape.places, shape.width, shape.layers, num_filters * dim)

    def forward(self, sizes: tuple[int, ...]) -> Tensor:
        """Return K filters side by side, the taps of all sizes concatenated, (sum of sizes, K C)."""
        weight = self.network.taps.weight
        segments = Segments.of(sizes, weight.device)
        hidden = self.network.hidden(place_features(segments, self.dim_place, weight))
        # of a single size the places of a channel are contiguous, as transforms read them
        taps = (weight @ hidden.mT).mT if len(sizes) == 1 else hidden @ weight.mT
        taps = taps.to(torch.promote_types(taps.dtype, torch.float32))  # 16 bits: no 1e-12
        return NORMS[self.norm](taps, segments)


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
        self.form = form
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
SHORT_WIDTH = 3  # taps of the short convolution


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

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:  # noqa: ARG002
        super().__init__()
        self.dim = dim
        self.project, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.short = nn.Parameter(torch.randn(SHORT_WIDTH, 3 * dim) / math.sqrt(SHORT_WIDTH))
        self.short_bias = nn.Parameter(torch.zeros(3 * dim))
        self.filter = LongFilter(dim, 1, norm="none")
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
        rate = torch.linspace(1 / FASTEST, 1 / SLOWEST, self.dim, device=taps.device) * -math.log(SHARE_LEFT)
        time = place_features(Segments.of(sizes, taps.device), 1, taps)  # t / (n - 1)
        return taps * torch.exp(-time * rate.to(taps.dtype))
