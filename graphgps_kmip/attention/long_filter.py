"""Implicit long filters (Romero et al. 2022; Hyena, Poli et al. 2023): a small network of the place gives each tap.

The network reads the fraction t / n, so that a filter exists for every number of nodes n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import on_device
from graphgps_kmip.ops.operators import refuse_second_derivative
from graphgps_kmip.ops.row_chunks import RowStage, map_rows

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
        self.dim, self.num_filters, self.norm, self.dim_place = dim, num_filters, norm, shape.places
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

    def extra_repr(self) -> str:
        """Return number of filters and norm."""
        return f"{self.num_filters} filters of {self.dim} channels, norm={self.norm!r}"
