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

# Numbers of one chunk of wide rows on a CPU: 1 MiB in float32, which the second-level cache holds beside the weight.
CHUNK_NUMBERS = 2**18
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
            for part in wide.parts:
                if bias is None:
                    torch.mm(wide.rows(part), weight.T, out=y[part])
                else:
                    torch.addmm(bias, wide.rows(part), weight.T, out=y[part])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradient of the weight by chunks of rows; of x from the gradient of the wide rows, chunk by chunk."""
        x, weight, bias = ctx.saved_tensors
        num_bases, raw_channels = ctx.options
        if torch.is_grad_enabled():
            plain = partial(plain_sinusoidal_linear, num_bases=num_bases, raw_channels=raw_channels)
            return *differentiable_gradients(plain, (x, weight, bias), (grad,)), None, None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(dim=0) if bias is not None and ctx.needs_input_grad[2] else None
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        wide = _Wide(x, weight, num_bases, raw_channels)
        for part in wide.parts:
            rows = wide.rows(part)
            if grad_weight is not None:
                grad_weight.addmm_(grad[part].T, rows)
            if grad_x is not None:
                grad_x[part] = wide.gradient(part, rows, (grad[part] @ weight).to(x.dtype))
        return grad_x, grad_weight, grad_bias, None, None


class _Wide:
    """Encodings of some rows at a time, written into one buffer.

    Args:
        x (Tensor): Values.
        weight (Tensor): Gives the dtype and the width.
        num_bases (int): S.
        raw_channels (bool): As in `sinusoidal`.
    """

    def __init__(self, x: Tensor, weight: Tensor, num_bases: int, raw_channels: bool) -> None:
        self.x, self.num_bases = x, num_bases
        self.raw = x.size(1) if raw_channels or num_bases == 0 else 0  # columns in front of the waves
        numbers = CHUNK_NUMBERS if x.device.type == "cpu" else GPU_CHUNK_NUMBERS
        step = max(1, numbers // max(1, weight.size(1)))
        self.parts = [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]
        self.buffer = weight.new_empty(min(step, len(x)), weight.size(1))
        self.bases = [math.pi * 2.0**s for s in range(num_bases)]

    def rows(self, part: slice) -> Tensor:
        """Return the encoding of some rows; the next call overwrites it. Shapes: (p, W)."""
        x = self.x[part]
        wide = self.buffer[: len(x)]
        if self.raw:
            wide[:, : self.raw] = x
        waves = self._waves(wide)
        for number, base in enumerate(self.bases):
            angle = x * base
            waves[:, :, number, 0] = angle.sin()
            waves[:, :, number, 1] = angle.cos_()
        return wide

    def gradient(self, part: slice, rows: Tensor, grad: Tensor) -> Tensor:
        """Return the gradient of the values from that of the wide rows, (p, W) -> (p, C).

        ``d sin(b x) = b cos(b x)`` and ``d cos(b x) = -b sin(b x)``; the waves are those of ``rows``.
        """
        x = self.x[part]
        found = grad[:, : self.raw].clone() if self.raw else torch.zeros_like(x)
        waves, grads = self._waves(rows).to(x.dtype), self._waves(grad)
        for number, base in enumerate(self.bases):
            sine, cosine = waves[:, :, number].unbind(-1)
            found += base * (grads[:, :, number, 0] * cosine - grads[:, :, number, 1] * sine)
        return found

    def _waves(self, wide: Tensor) -> Tensor:
        """View the columns of the waves as (p, C, S, 2)."""
        return wide[:, self.raw :].unflatten(1, (-1, self.num_bases, 2)) if self.num_bases else wide[:, :0]
