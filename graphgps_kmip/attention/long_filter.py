"""Implicit long filters (Romero et al. 2022; Hyena, Poli et al. 2023): a small network of the place gives each tap.

The network has the form of Hyena's reference implementation: cosines and sines of the place as input, sines of learned
frequencies as activation. Of the place it sees the fraction t / n, so that a filter exists for every number of nodes n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.row_chunks import RowStage, map_rows
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import NATURAL, WIDTH, whole

TINY = 1e-12  # least divisor; its square, in the gradient, is a float32 above 0
SUM_NUMBERS = 2**17  # of the gradient of sums at a time, which a cache holds


# ranges of the options of those who have such filters
FilterWidth, FilterPlaces, FilterLayers = Annotated[int, WIDTH], Annotated[int, whole(3, 1001)], Annotated[int, NATURAL]


@dataclass(frozen=True)
class FilterShape:
    """Size of the network that makes long filters.

    Args:
        width (int, optional): channels of its hidden layers; Hyena has 64. (default: 64)
        places (int, optional): features of a place that it reads, odd: (places - 1) / 2 frequencies. (default: 33)
        layers (int, optional): hidden layers behind the first one; Hyena has 2. (default: 2)
    """

    width: int = 64
    places: int = 33
    layers: int = 2


class LearnedSine(nn.Module):
    """``sin(frequency * x)`` with a learned frequency for each channel, which starts at 1 (Hyena).

    Args:
        dim (int): channels.

    Shapes: (..., dim) -> (..., dim).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sines."""
        return torch.sin(self.frequency * x)


def place_features(sizes: tuple[int, ...], dim: int, like: Tensor) -> Tensor:
    r"""Return what the network reads of each place t of each size n: t / (n - 1), and cosines and -sines.

    .. math:: [t / (n - 1), \cos(f_b 2 \pi t / n), -\sin(f_b 2 \pi t / n)]

    for (dim - 1) / 2 frequencies f evenly from 1e-4 to (dim - 1) / 2 - 1, as Hyena has them. Angles are computed in
    float64: in float32 those of 10^6 nodes would be off by 1e-4.

    Args:
        sizes (tuple[int, ...]): sizes n.
        dim (int): columns, odd.
        like (Tensor): of which dtype and device they are.

    Shapes: returns (sum of sizes, dim).
    """
    bands = (dim - 1) // 2
    frequency = torch.linspace(1e-4, max(bands - 1, 1e-4), bands, dtype=torch.float64, device=like.device)
    rows = [torch.zeros(0, dim, dtype=like.dtype, device=like.device)]
    for size in sizes:
        place = torch.arange(size, dtype=torch.float64, device=like.device)[:, None]
        angle = (2 * math.pi / size) * place * frequency
        rows.append(torch.cat([place / max(1, size - 1), angle.cos(), -angle.sin()], 1).to(like.dtype))
    return torch.cat(rows)


def _two_gains(taps: Tensor) -> Tensor:
    """Scale what varies to length 1, and the mean to its share of the root mean square, spread over all taps."""
    mean = taps.mean(1, keepdim=True)
    varying = taps - mean
    share = mean / taps.square().mean(1, keepdim=True).sqrt().clamp(min=TINY)
    return varying / varying.norm(dim=1, keepdim=True).clamp(min=TINY) + share / taps.size(1)


def _absolute(taps: Tensor) -> Tensor:
    return _DividedByAbsoluteSum.apply(taps)[0]


class _DividedByAbsoluteSum(Function):
    r"""Each row divided by its sum of absolute values, ``y = t / s``: y and s are kept, and not t.

    They give the gradient, for y has the sign of t. Both are outputs, so that a second derivative sees where they
    come from.
    """

    @staticmethod
    def forward(ctx: Any, taps: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: (D, n) -> (D, n), (D, 1)."""
        total = torch.linalg.vector_norm(taps, 1, dim=1, keepdim=True)
        scaled = taps / total.clamp(min=TINY)
        ctx.save_for_backward(scaled, total)
        return scaled, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_total: Tensor) -> Tensor:
        """Return ``(dy - sign(y) <y, dy>) / s + sign(y) ds``."""
        scaled, total = ctx.saved_tensors
        if torch.is_grad_enabled() or scaled.numel() <= SUM_NUMBERS:
            return _through_the_sum(scaled, total, grad, grad_total)
        out = torch.empty_like(scaled)
        step = max(1, SUM_NUMBERS // max(1, scaled.size(1)))
        for start in range(0, len(scaled), step):
            part = slice(start, start + step)
            out[part] = _through_the_sum(scaled[part], total[part], grad[part], grad_total[part])
        return out


def _through_the_sum(scaled: Tensor, total: Tensor, grad: Tensor, grad_total: Tensor) -> Tensor:
    along = (scaled * grad).sum(1, keepdim=True) * (total > TINY)
    divisor = total.clamp(min=TINY)
    return grad / divisor + scaled.sign() * (grad_total - along / divisor)


def _unchanged(taps: Tensor) -> Tensor:
    return taps


# of (D, n), the taps of D filters of one size
NORMS: dict[str, Callable[[Tensor], Tensor]] = {"l1": _absolute, "l2": _two_gains, "none": _unchanged}


class FilterNetwork(nn.Module):
    """Linear layers with one `LearnedSine` behind each but the last: features of a place -> taps there.

    Args:
        dim_in (int): features of a place.
        width (int): hidden channels.
        num_hidden (int): hidden layers behind the first.
        dim_out (int): taps.

    Shapes: (P, dim_in) -> (P, dim_out).
    """

    def __init__(self, dim_in: int, width: int, num_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in [dim_in] + [width] * num_hidden)
        self.sine = LearnedSine(width)
        self.taps = nn.Linear(width, dim_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the taps."""
        return self.taps(self.hidden(x, lambda module, x: module(x)))

    def hidden(self, x: Tensor, call: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """Return what the last layer reads, (P, dim_in) -> (P, width)."""
        for layer in self.layers:
            x = call(self.sine, call(layer, x))
        return x


class LongFilter(nn.Module):
    """Filters as long as each graph, from a network of the place.

    Without a normalisation a convolution sums n terms, and its outputs grow like the root of n or faster; the GECO
    paper says nothing of it. ``l1``, an option of Hyena's code, divides by the sum of absolute values: no output
    exceeds the largest input, as in a softmax attention, and uncorrelated inputs average out like 1 / sqrt(n).
    ``l2`` gives the taps without their mean the Euclidean length 1, and the mean a sum of at most 1: uncorrelated and
    constant inputs keep their scale, but what oscillates along the nodes as the filter does, such as the output of a
    filter before it, can grow like sqrt(n).

    Args:
        dim (int): channels C of each filter.
        num_filters (int, optional): filters K. (default: 2)
        shape (FilterShape, optional): size of the network. (default: ``FilterShape()``)
        norm (str, optional): ``l1``, ``l2`` or ``none``. (default: ``l1``)

    Shapes: sizes of graphs -> K filters side by side, (sum of sizes, K C).

    Raises:
        ValueError: the number of features of a place is even, or no norm has this name.
    """

    def __init__(self, dim: int, num_filters: int = 2, *, shape: FilterShape = FilterShape(), norm: str = "l1") -> None:  # noqa: B008
        super().__init__()
        if shape.places < 3 or shape.places % 2 == 0:
            raise InputError(f"filter_places must be odd and 3 or more (t, cosines and sines), got {shape.places}")
        self.normalised = look_up(NORMS, norm, "filter_norm")
        self.dim, self.num_filters, self.norm, self.dim_place = dim, num_filters, norm, shape.places
        self.network = FilterNetwork(shape.places, shape.width, shape.layers, num_filters * dim)
        self.width = max(shape.places, shape.width)

    def forward(self, sizes: tuple[int, ...]) -> Tensor:
        """Return K filters side by side, the taps of all sizes one behind the other, (sum of sizes, K C).

        The places of a channel stand one behind the other in memory, as convolutions read them.
        """
        network = self.network
        places = place_features(sizes, self.dim_place, network.taps.weight)
        modules = (*network.layers, network.sine)
        stage = RowStage(partial(_hidden, network), self.width, ((places, None),), modules=modules)
        taps = network.taps.weight @ map_rows([stage], sum(sizes)).mT  # (K C, P)
        taps = taps.to(torch.promote_types(taps.dtype, torch.float32))  # a float16 has no 1e-12
        if len(sizes) == 1:
            return self.normalised(taps).mT
        return torch.cat([taps[:, :0], *map(self.normalised, taps.split(list(sizes), 1) if sizes else ())], 1).mT

    def extra_repr(self) -> str:
        """Return number of filters and norm."""
        return f"{self.num_filters} filters of {self.dim} channels, norm={self.norm!r}"


def _hidden(
    network: FilterNetwork,
    x: None,  # noqa: ARG001
    part: slice,  # noqa: ARG001
    rows: list[Tensor],
    shared: list[Tensor],  # noqa: ARG001
    call: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """Return what the last layer reads of some places; the shapes are those of `RowStage`."""
    return network.hidden(rows[0], call)
