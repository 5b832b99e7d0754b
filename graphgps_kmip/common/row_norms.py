"""Norms of the rows of any table of features, nodes or pairs: batch norm as an affine map, layer norm, both, none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from graphgps_kmip.common.gradients import refuse_second_derivative

CACHED_ROWS = 2**12


class _Moments(Function):
    """Mean and biased variance of each channel; the backward pass reads x once, and keeps nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(0)
        # a part fits into the cache; torch.var_mean takes three times as long
        squares = [
            (part - mean).square_().sum(0) for part in x.split(CACHED_ROWS if x.device.type == "cpu" else len(x))
        ]
        variance = torch.stack(squares).sum(0) / len(x)
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        """``dx = (dm + 2 (x - m) dv) / P``."""
        refuse_second_derivative("the statistics of a batch norm")
        x, mean = ctx.saved_tensors
        slope = grad_variance * (2 / len(x))
        return torch.addcmul(grad_mean / len(x) - mean * slope, x, slope)


class RowBatchNorm(nn.Module):
    r"""Batch norm (Ioffe and Szegedy 2015) of rows, ``y = x * scale + shift`` with statistics of all rows of the batch.

    That of torch, and its parameter names. `affine` returns scale and shift instead of y, for operators that apply them
    to parts of x as they read them, so that y is never stored. A batch of one row, or of none, uses the running
    statistics, or leaves the bias alone where there are none.

    Args:
        dim (int): channels C.
        momentum (float, optional): share of the new statistics in the running ones. (default: 0.1)
        running (bool, optional): keep running statistics, for eval mode; False: those of the batch in both modes.
            (default: True)
        eps (float, optional): added to the variance. (default: 1e-05)

    Shapes: x (P, C) -> (P, C).
    """

    def __init__(self, dim: int, momentum: float = 0.1, running: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim) if running else None)
        self.register_buffer("running_var", torch.ones(dim) if running else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0) if running else None)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised rows."""
        scale, shift = self.affine(x)
        return torch.addcmul(shift, x, scale).to(x.dtype)

    def affine(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return scale and shift, (C,) each; in training mode the running statistics move."""
        if self.running_mean is not None and (len(x) < 2 or not self.training):
            mean, variance = self.running_mean, self.running_var
        elif not len(x):
            mean, variance = torch.zeros_like(self.bias), torch.ones_like(self.bias)
        else:
            mean, variance = _Moments.apply(x.to(torch.promote_types(x.dtype, torch.float32)))
            self._track(mean.detach(), variance.detach(), len(x))
        scale = self.weight * (variance + self.eps).rsqrt()
        return scale, self.bias - mean * scale

    def extra_repr(self) -> str:
        """Say the width, the momentum, and whether there are running statistics."""
        return f"{len(self.weight)}, momentum={self.momentum}, running={self.running_mean is not None}"

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        if self.running_mean is None or not self.training:
            return
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        unbiased = variance * (rows / (rows - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)


def row_norms(
    dim: int, *, layer_norm: bool = False, batch_norm: bool = True, momentum: float = 0.1, running: bool = True
) -> nn.Sequential:
    """Return norms of rows: layer norm over the channels, then batch norm; either, both or none.

    Args:
        dim (int): channels.
        layer_norm (bool, optional): (default: False)
        batch_norm (bool, optional): (default: True)
        momentum (float, optional): of the batch norm. (default: 0.1)
        running (bool, optional): running statistics of the batch norm. (default: True)

    Shapes: x (P, C) -> (P, C).
    """
    norms: list[nn.Module] = [nn.LayerNorm(dim)] if layer_norm else []
    return nn.Sequential(*norms, *([RowBatchNorm(dim, momentum, running)] if batch_norm else []))
