"""Sinusoidal encoding of real numbers (SPE of PPGT), alone and together with the linear layer behind it.

Ma et al. 2025 (PPGT), section on sinusoidal enhancement of relative encodings; as NeRF's encoding of positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoidal_width(channels: int, num_bases: int, raw_channels: bool) -> int:
    """Return the width of the encoding of C channels: 2 C S, and C more with the raw channels or without bases."""
    return channels * (2 * num_bases + (raw_channels or num_bases == 0))


def sinusoidal(x: Tensor, num_bases: int, raw_channels: bool = True) -> Tensor:
    r"""Return the sinusoidal encoding of each channel.

    .. math:: [x_1, \dots, x_C, \; \sin(2^s \pi x_c), \cos(2^s \pi x_c) \text{ for } c = 1..C, s = 0..S-1]

    computed in the dtype of x: rounding of x is magnified by 2^S, so that 15 bases need float64.

    Args:
        x (Tensor): Values.
        num_bases (int): S; 0: x itself.
        raw_channels (bool, optional): The values stand in front of their sines and cosines. (default: ``True``)

    Shapes: x (P, C) -> (P, `sinusoidal_width`).
    """
    if num_bases == 0:
        return x
    angles = x[:, :, None] * _bases(x, num_bases)  # (P, C, S)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return torch.cat([x, waves], dim=1) if raw_channels else waves


def _bases(x: Tensor, num_bases: int) -> Tensor:
    """Return 2^s pi, (S,)."""
    return torch.pi * 2.0 ** torch.arange(num_bases, dtype=x.dtype, device=x.device)


def sinusoidal_linear_of_chunk(
    x: Tensor, weight: Tensor, bias: Tensor, num_bases: int, raw_channels: bool = True
) -> Tensor:
    """Return ``linear(sinusoidal(x))`` of few rows, for a caller that divides rows into chunks (`map_rows`).

    Sines and cosines of all bases are two matrices with a product each, so that no wide encoding is put together; the
    backward pass keeps them. They are computed in the dtype of x, and cast to that of the weight or of autocast.

    Args:
        x (Tensor): Values.
        weight (Tensor): Of a linear layer.
        bias (Tensor): Likewise.
        num_bases (int): S.
        raw_channels (bool, optional): As in `sinusoidal`. (default: ``True``)

    Shapes: x (P, C), weight (D, `sinusoidal_width`), bias (D,) -> (P, D).
    """
    device, channels = x.device.type, x.size(1)
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    weight, bias = weight.to(kind), bias.to(kind)
    raw = channels if raw_channels or num_bases == 0 else 0
    y = torch.addmm(bias, x.to(kind), weight[:, :raw].T) if raw else bias
    if num_bases == 0:
        return y
    angles = (x[:, None] * _bases(x, num_bases)[:, None]).flatten(1)  # (p, S C)
    # (D, C, S, 2) as the columns of `sinusoidal` are -> the waves' (2, D, S C)
    waves = weight[:, raw:].unflatten(1, (channels, num_bases, 2)).permute(3, 0, 2, 1).flatten(2)
    return torch.addmm(torch.addmm(y, angles.sin().to(kind), waves[0].T), angles.cos().to(kind), waves[1].T)
