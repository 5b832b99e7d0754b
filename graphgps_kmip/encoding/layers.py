"""Small layers that the encoders of positional encodings share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from graphgps_kmip.errors import InputError

NORMS = {"none": nn.Identity, "batchnorm": nn.BatchNorm1d}


def relu_layers(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers from each width to the next, with ReLU after every one, the last one too."""
    return nn.Sequential(*[module for pair in pairwise(widths) for module in (nn.Linear(*pair), nn.ReLU())])


def raw_norm(name: str, kind: str, columns: int) -> nn.Module:
    """Return the norm of the raw statistics of an encoding.

    Args:
        name: of the encoding, for the error.
        kind: value of ``posenc_<name>.raw_norm_type``, BatchNorm or none, in any capitals.
        columns: of the statistics.

    Raises:
        ValueError: another kind.
    """
    if kind.lower() not in NORMS:
        raise InputError(f"posenc_{name}.raw_norm_type must be BatchNorm or none, got {kind!r}")
    return NORMS[kind.lower()](columns)
