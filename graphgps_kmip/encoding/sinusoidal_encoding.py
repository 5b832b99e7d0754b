"""Sinusoidal encoding of real numbers (SPE of PPGT), alone and in one operator with the linear layer behind it.

Ma et al. 2025 (PPGT), section on sinusoidal enhancement of relative encodings; as NeRF's encoding of positions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from graphgps_kmip.common.gradients import differentiable_gradients

# Numbers of one chunk of wide rows on a CPU, 4 MiB in float32: of 2^16 to 2^22, 2^20 and 2^21 are the fastest (700,000
# rows of 252, one thread: 2.9 s forward and backward, 4.1 with 2^18, 4.9 with 2^22).
CHUNK_NUMBERS = 2**20
# Numbers of one chunk on a GPU: large enough that its calls do not count, 256 MiB in float32.
GPU_CHUNK_NUMBERS = 2**26


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


class SinusoidalEncoding(nn.Module):
    """Module of `sinusoidal`.

    Args:
        num_bases (int): S.
        raw_channels (bool, optional): Keep the values in front. (default: ``True``)

    Shapes: (P, C) -> (P, `sinusoidal_width`).
    """

    def __init__(self, num_bases: int, raw_channels: bool = True) -> None:
        super().__init__()
        self.num_bases, self.raw_channels = num_bases, raw_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the encoding."""
        return sinusoidal(x, self.num_bases, self.raw_channels)

    def extra_repr(self) -> str:
        """Return the settings, as printed in a model."""
        return f"num_bases={self.num_bases}, raw_channels={self.raw_channels}"


def sinusoidal_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, num_bases: int, raw_channels: bool = True
) -> Tensor:
    """Return ``linear(sinusoidal(x))`` without ever holding the wide encoding of all rows.

    It keeps x alone for the backward pass, which computes the sines again, some rows at a time. The encoding is
    computed in the dtype of x and cast to that of the weight, or of autocast. Gradients flow to x, weight and bias;
    second derivatives are those of the plain form.

    Args:
        x (Tensor): Values.
        weight (Tensor): Of a linear layer.
        bias (Tensor or None): Of a linear layer.
        num_bases (int): S.
        raw_channels (bool, optional): As in `sinusoidal`. (default: ``True``)

    Shapes: x (P, C), weight (D, `sinusoidal_width`), bias (D,) -> (P, D).
    """
    device = x.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    bias = None if bias is None else bias.to(kind)
    return _SinusoidalLinear.apply(x, weight.to(kind), bias, num_bases, raw_channels)


def sinusoidal_linear_of_chunk(
    x: Tensor, weight: Tensor, bias: Tensor, num_bases: int, raw_channels: bool = True
) -> Tensor:
    """`sinusoidal_linear` of few rows, for a caller that divides rows into chunks itself (`map_rows`).

    Sines and cosines of all bases are two matrices with a product each, so that no wide encoding is put together; the
    backward pass keeps them. Arguments, shapes and gradients are those of `sinusoidal_linear`.
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


def plain_sinusoidal_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, num_bases: int, raw_channels: bool
) -> Tensor:
    """`sinusoidal_linear` in operations that are differentiable as often as wanted; it keeps the wide encoding."""
    return nn.functional.linear(sinusoidal(x, num_bases, raw_channels).to(weight.dtype), weight, bias)


class _SinusoidalLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, num_bases: int, raw_channels: bool) -> Tensor:
        """Shapes: x (P, C), weight (D, W)."""
        ctx.save_for_backward(x, weight, bias)
        ctx.options = num_bases, raw_channels
        y = weight.new_empty(len(x), weight.size(0))
        with torch.autocast(x.device.type, enabled=False):
            wide = _Wide(x, weight, num_bases, raw_channels)
            columns = weight[:, wide.order].T.contiguous()
            for part in wide.parts:
                rows = wide.of(part).T
                if bias is None:
                    torch.mm(rows, columns, out=y[part])
                else:
                    torch.addmm(bias, rows, columns, out=y[part])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of the weight by chunks of rows; of x from the gradient of the wide rows, chunk by chunk."""
        x, weight, bias = ctx.saved_tensors
        num_bases, raw_channels = ctx.options
        if torch.is_grad_enabled():
            plain = partial(plain_sinusoidal_linear, num_bases=num_bases, raw_channels=raw_channels)
            return *differentiable_gradients(plain, (x, weight, bias), (grad,)), None, None
        wide = _Wide(x, weight, num_bases, raw_channels)
        columns = weight[:, wide.order]  # (D, W)
        grad_columns = torch.zeros_like(columns) if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(dim=0) if bias is not None and ctx.needs_input_grad[2] else None
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        for part in wide.parts:
            values = wide.of(part)
            if grad_columns is not None:
                grad_columns.addmm_(grad[part].T, values.T)
            if grad_x is not None:
                grad_x[part] = wide.gradient(values, columns.T @ grad[part].T)
        grad_weight = None if grad_columns is None else torch.empty_like(weight)
        if grad_weight is not None:
            grad_weight[:, wide.order] = grad_columns
        return grad_x, grad_weight, grad_bias, None, None


class _Wide:
    """Encodings of some rows at a time, in one buffer, transposed: each channel's values are contiguous.

    In it the sines of all channels stand together, base by base, then their cosines: ``order`` has the place of each
    of its rows among the columns of `sinusoidal`.

    Args:
        x (Tensor): Values.
        weight (Tensor): Gives the dtype and the width.
        num_bases (int): S.
        raw_channels (bool): As in `sinusoidal`.
    """

    def __init__(self, x: Tensor, weight: Tensor, num_bases: int, raw_channels: bool) -> None:
        self.x, channels = x, x.size(1)
        self.raw = channels if raw_channels or num_bases == 0 else 0  # rows in front of the waves
        numbers = CHUNK_NUMBERS if x.device.type == "cpu" else GPU_CHUNK_NUMBERS
        step = max(1, numbers // max(1, weight.size(1)))
        self.parts = [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]
        self.dtype = weight.dtype
        self.bases = [math.pi * 2.0**s for s in range(num_bases)]
        waves = torch.arange(2 * num_bases * channels, device=x.device).view(channels, num_bases, 2)
        self.order = torch.cat([torch.arange(self.raw, device=x.device), self.raw + waves.permute(1, 2, 0).flatten()])
        self.buffer = weight.new_empty(weight.size(1) * min(step, len(x)))

    def of(self, part: slice) -> Tensor:
        """Return the encoding of some rows; the next call overwrites it. Shapes: (W, p)."""
        x = self.x[part].T.contiguous()  # (C, p)
        wide = self.buffer[: len(self.order) * x.size(1)].view(-1, x.size(1))
        if self.raw:
            wide[: self.raw] = x
        angle = torch.empty_like(x)
        for base, waves in zip(self.bases, self._waves(wide), strict=True):
            torch.mul(x, base, out=angle)
            if self.dtype == x.dtype:
                torch.sin(angle, out=waves[0])
                torch.cos(angle, out=waves[1])
            else:
                waves[0], waves[1] = angle.sin(), angle.cos()
        return wide

    def gradient(self, wide: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the values from that of the wide rows, (W, p) -> (p, C).

        ``d sin(b x) = b cos(b x)`` and ``d cos(b x) = -b sin(b x)``; the waves are those of ``wide``.
        """
        found = torch.zeros_like(grad[: self.x.size(1)], dtype=self.x.dtype)
        if self.raw:
            found += grad[: self.raw]
        for base, waves, grads in zip(self.bases, self._waves(wide), self._waves(grad), strict=True):
            found += base * (grads[0] * waves[1] - grads[1] * waves[0])
        return found.T

    def _waves(self, wide: Tensor) -> Tensor:
        """View the rows of the waves as (S, 2, C, p)."""
        return wide[self.raw :].view(len(self.bases), 2, -1, wide.size(1)) if self.bases else wide[:0]
