"""Longitude and latitude as sines and cosines (k-MIP paper, appendix on City-Networks, eq. 38).

The paper keeps all other features beside the encodings; its parameter counts say that the two raw coordinates go.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError

NUM_FREQUENCIES = 8  # 2^0 .. 2^7
SPAN = 0.9 * math.pi  # below pi: nodes a little outside the training nodes' box do not meet those at its other side


def encode_coordinates(features: Tensor, train: Tensor) -> Tensor:
    """Replace longitude and latitude by their sines and cosines, and standardise the other features.

    The result is [sin lon, cos lon, sin lat, cos lat, others], the first four of `NUM_FREQUENCIES` columns each. All
    statistics are those of the training nodes; the computation is in float64.

    Args:
        features (Tensor): Longitude, latitude, and any other columns.
        train (Tensor): True for the nodes that train.

    Shapes: features (N, 2 + C), train (N,) -> (N, 4 * NUM_FREQUENCIES + C) float32.

    Raises:
        InputError: no coordinates, or no training node.
    """
    if features.dim() != 2 or features.size(1) < 2:
        raise InputError(f"features must be (N, 2 + C), longitude and latitude first, got {tuple(features.shape)}")
    coordinates = scaled(features[:, :2], train)
    longitude, latitude = (sines_and_cosines(column) for column in coordinates.T)
    return torch.cat([longitude, latitude, standardised(features[:, 2:], train)], dim=1).float()


def sines_and_cosines(angles: Tensor, num_frequencies: int = NUM_FREQUENCIES) -> Tensor:
    """Return v = [sin(2^0 x), .., sin(2^(F-1) x), cos(2^0 x), .., cos(2^(F-1) x)] of each angle x, in float64.

    Args:
        angles (Tensor): In radians.
        num_frequencies (int, optional): F. (default: ``NUM_FREQUENCIES``)

    Shapes: angles (N,) -> (N, 2F).
    """
    multiples = angles.double()[:, None] * 2.0 ** torch.arange(num_frequencies, dtype=torch.float64)  # (N, F)
    return torch.cat([multiples.sin(), multiples.cos()], dim=1)


def scaled(values: Tensor, train: Tensor) -> Tensor:
    """Scale each column so that its training values span [-0.9 pi, 0.9 pi], in float64; other nodes may lie outside.

    A column that is constant over the training nodes becomes 0.

    Shapes: values (N, C), train (N,) -> (N, C).
    """
    low, high = _range(values, train)
    return _divided(values.double() - (low + high) / 2, (high - low) / 2) * SPAN


def standardised(values: Tensor, train: Tensor) -> Tensor:
    """Shift and scale each column to mean 0 and variance 1 (divided by N) over the training nodes, in float64.

    A column that is constant over the training nodes becomes 0.

    Shapes: values (N, C), train (N,) -> (N, C).
    """
    low, high = _range(values, train)
    centred = values.double() - values.double()[train].mean(0)
    deviation = centred[train].square().mean(0).sqrt()
    return _divided(centred, torch.where(low == high, 0.0, deviation))  # where rounding made 1e-17 of a 0


def _range(values: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
    if not bool(train.any()):
        raise InputError("there is no training node: coordinates and features are scaled by those")
    known = values.double()[train]
    return known.amin(0), known.amax(0)


def _divided(values: Tensor, unit: Tensor) -> Tensor:
    return values / torch.where(unit == 0, torch.inf, unit)
