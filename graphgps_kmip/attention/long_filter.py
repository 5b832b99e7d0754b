"""Implicit long filters (Romero et al. 2022; Hyena, Poli et al. 2023): a small network of the place gives each tap.

The network has the form of Hyena's reference implementation: cosines and sines of the place as input, sines of learned
frequencies as activation. Of the place it sees the fraction t / n, so that a filter exists for every number of nodes n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.row_chunks import RowStage, map_rows
from graphgps_kmip.errors import InputError


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
    mean = taps.mean(0, keepdim=True)
    varying = taps - mean
    share = mean / _above_zero(taps.square().mean(0, keepdim=True).sqrt())
    return varying / _above_zero(varying.norm(dim=0, keepdim=True)) + share / len(taps)


def _absolute(taps: Tensor) -> Tensor:
    return taps / _above_zero(taps.abs().sum(0, keepdim=True))


def _above_zero(norm: Tensor) -> Tensor:
    return norm.clamp(min=1e-12)  # its square, in the gradient, is a float32 above 0


def _unchanged(taps: Tensor) -> Tensor:
    return taps


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
        for layer in self.layers:
            x = self.sine(layer(x))
        return self.taps(x)


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
        width (int, optional): of the network's hidden layers; Hyena has 64. (default: 64)
        dim_place (int, optional): features of a place, odd: (dim_place - 1) / 2 frequencies. (default: 33)
        num_hidden (int, optional): hidden layers behind the first one; Hyena has 2. (default: 2)
        norm (str, optional): ``l1``, ``l2`` or ``none``. (default: ``l1``)

    Shapes: sizes of graphs -> K filters (sum of sizes, C).

    Raises:
        ValueError: dim_place is even, or no norm has this name.
    """

    def __init__(
        self,
        dim: int,
        num_filters: int = 2,
        *,
        width: int = 64,
        dim_place: int = 33,
        num_hidden: int = 2,
        norm: str = "l1",
    ) -> None:
        super().__init__()
        if dim_place < 3 or dim_place % 2 == 0:
            raise InputError(f"filter_places must be odd and 3 or more (t, cosines and sines), got {dim_place}")
        self.normalised = look_up(NORMS, norm, "filter_norm")
        self.dim, self.num_filters, self.dim_place, self.norm = dim, num_filters, dim_place, norm
        self.network = FilterNetwork(dim_place, width, num_hidden, num_filters * dim)
        self.width = max(width, num_filters * dim)

    def forward(self, sizes: tuple[int, ...]) -> list[Tensor]:
        """Return K filters, each with the taps of all sizes one behind the other, (sum of sizes, C)."""
        places = place_features(sizes, self.dim_place, self.network.taps.weight)
        stage = RowStage(partial(_taps, self.network), self.width, ((places, None),), modules=(self.network,))
        taps = map_rows([stage], sum(sizes)).view(-1, self.num_filters * self.dim)
        taps = taps.to(torch.promote_types(taps.dtype, torch.float32))  # a float16 has no 1e-12
        if sizes:
            taps = torch.cat([self.normalised(part) for part in taps.split(list(sizes))])
        return list(taps.split(self.dim, dim=1))

    def extra_repr(self) -> str:
        """Return number of filters and norm."""
        return f"{self.num_filters} filters of {self.dim} channels, norm={self.norm!r}"


def _taps(
    network: nn.Module,
    x: None,  # noqa: ARG001
    part: slice,  # noqa: ARG001
    rows: list[Tensor],
    shared: list[Tensor],  # noqa: ARG001
    call: Callable[[nn.Module, Tensor], Tensor],
) -> Tensor:
    """Return the taps of some places; the shapes are those of `RowStage`."""
    return call(network, rows[0])
