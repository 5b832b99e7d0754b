"""Layers on the rows of any table of features, nodes or pairs: AdaRMSNorm (PPGT) and other norms, MLP, DropPath."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import gelu, linear

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.operators import refuse_second_derivative

EPS = 1e-6  # in both roots of AdaRMSNorm, as in the public code
CHUNK_NUMBERS = 2**18  # of one chunk of rows on the CPU, whose temporary tensors stay in the cache
CACHED_ROWS = 2**12


class AdaRMSNorm(nn.Module):
    r"""Adaptive RMSNorm (PPGT, section on adaptive root-mean-square normalisation): a learned part of the scale stays.

    .. math::
        y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \sqrt{\mathrm{mean}((\alpha x + \beta)^2) + \epsilon}

    with means over the last dimension and learned vectors alpha and beta. With alpha 0 and beta 1, the start, it is
    RMSNorm with weight 1 (up to epsilon); with alpha 1 and beta 0 it is the identity. A row of zeros stays zero.

    Args:
        dim (int): channels C.
        eps (float, optional): added to both means. (default: 1e-06)

    Shapes: x (..., C) -> (..., C).
    """

    def __init__(self, dim: int, eps: float = EPS) -> None:
        super().__init__()
        self.eps = eps
        self.alpha, self.beta = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised rows, in the type of x."""
        return _AdaRMSNorm.apply(x, self.alpha, self.beta, self.eps)


def _chunks(x: Tensor) -> list[slice]:
    rows = max(1, CHUNK_NUMBERS // max(1, x.size(1))) if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def _mean_square(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(max(1, rows.size(-1)))


class _AdaRMSNorm(Function):
    """``y = r t x`` with ``r = 1 / sqrt(mean(x^2) + eps)``, ``t = sqrt(mean(u^2) + eps)``, ``u = alpha x + beta``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor, eps: float) -> Tensor:
        rows, kind = x.reshape(-1, x.size(-1)), torch.promote_types(x.dtype, torch.float32)
        alpha_, beta_ = alpha.to(kind), beta.to(kind)
        y = torch.empty_like(rows)
        r, t = (torch.empty(len(rows), 1, dtype=kind, device=x.device) for _ in range(2))
        for part in _chunks(rows):
            wide = rows[part].to(kind)
            r[part] = _mean_square(wide).add_(eps).rsqrt_()
            t[part] = _mean_square(torch.addcmul(beta_, wide, alpha_)).add_(eps).sqrt_()
            torch.mul(wide, r[part] * t[part], out=y[part])
        ctx.save_for_backward(x, alpha, beta, r, t)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dx = r t g + d (r / (C t) alpha u - t r^3 / C x)`` with ``d = <g, x>``; alpha and beta sum over rows."""
        x, alpha, beta, r, t = ctx.saved_tensors
        refuse_second_derivative("AdaRMSNorm")
        channels, kind = x.size(-1), r.dtype
        rows, grads = x.reshape(-1, channels), grad.reshape(-1, channels)
        grad_x = torch.empty_like(rows)
        a, b = alpha.to(kind), beta.to(kind)
        square, product, each = a * a, a * b, torch.ones_like(a)
        ones, first, second = a.new_zeros(()), torch.zeros_like(a), torch.zeros_like(a)  # sums of w, w x, w x^2
        for part in _chunks(rows):
            wide, g, r_, t_ = rows[part].to(kind), grads[part].to(kind), r[part], t[part]
            d = (g * wide).mv(each)[:, None]
            w = d * r_ / (channels * t_)  # (m, 1), gradient of mean(u^2)
            ones += w.sum()
            first.addmv_(wide.T, w[:, 0])
            second.addmv_((wide * wide).T, w[:, 0])
            # the factor of x in the gradient becomes the gradient
            gradient = torch.addcmul(d * t_ * r_.pow(3) / -channels, w, square)
            gradient.mul_(wide).addcmul_(w, product)
            torch.addcmul(gradient, g, r_ * t_, out=grad_x[part])
        grad_alpha, grad_beta = a * second + b * first, a * first + b * ones
        return grad_x.view(x.shape), grad_alpha.to(alpha.dtype), grad_beta.to(beta.dtype), None


def _make_batch_norm(dim: int) -> nn.Module:
    from torch_geometric.nn import BatchNorm  # here: an attention alone loads no library but torch

    return BatchNorm(dim, allow_single_element=True)


# Name, as in public files -> channels C -> module (..., C) -> (..., C); batch_norm takes rows only, (M, C).
NORM_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "ada_rms_norm": AdaRMSNorm,
    "rms_norm": partial(nn.RMSNorm, eps=EPS),
    "rms_norm_eps0": nn.RMSNorm,  # torch's default: the rounding unit of the type
    "rms_norm_eps1": partial(nn.RMSNorm, eps=1.0),
    "batch_norm": _make_batch_norm,
    "layer_norm": nn.LayerNorm,
    "none": lambda dim: nn.Identity(),  # noqa: ARG005
}


class _Moments(Function):
    """Mean and biased variance of each channel; the backward pass reads x once, and keeps nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.mean(0)
        # a part fits into the cache; torch.var_mean takes three times as long
        parts = x.split(CACHED_ROWS if x.device.type == "cpu" else len(x))
        variance = torch.stack([(part - mean).square_().sum(0) for part in parts]).sum(0) / len(x)
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

    Parameter names are torch's. `affine` returns scale and shift, for operators that apply them as they read x. A batch
    of one row, or of none, uses the running statistics; without these y is the bias.

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
        """Return the settings, as printed in a model."""
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
    """Return norms of rows (P, C): layer norm, then batch norm, with ``momentum`` and ``running``; either or none."""
    norms: list[nn.Module] = [nn.LayerNorm(dim)] if layer_norm else []
    return nn.Sequential(*norms, *([RowBatchNorm(dim, momentum, running)] if batch_norm else []))


class GELUMLP(nn.Sequential):
    """``nn.Sequential`` in which each exact GELU and the linear layer after it are one operator, outside of autocast.

    It keeps the inputs of activations for its backward pass, not their values. Shapes: x (P, C) -> (P, D).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows after the last layer."""
        layers, number = list(self), 0
        while number < len(layers):
            pair = layers[number : number + 2]
            if _is_fusible(pair, x):
                x = _GELULinear.apply(x, pair[1].weight, pair[1].bias)
                number += 2
            else:
                x = layers[number](x)
                number += 1
        return x


def _is_fusible(pair: list[nn.Module], x: Tensor) -> bool:
    if len(pair) < 2 or x.dim() != 2 or torch.is_autocast_enabled(x.device.type):
        return False
    return type(pair[0]) is nn.GELU and pair[0].approximate == "none" and type(pair[1]) is nn.Linear


class _GELULinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Shapes: x (P, C), weight (D, C), bias (D,) -> (P, D)."""
        ctx.save_for_backward(x, weight, bias)
        return linear(gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        refuse_second_derivative("MLP with GELU")
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            torch.ops.aten.gelu_backward(grad @ weight, x) if need_x else None,
            grad.T @ gelu(x) if need_weight else None,
            grad.sum(0) if need_bias else None,
        )


class DropPath(nn.Module):
    r"""Stochastic depth (Huang et al. 2016): a residual branch is zero for random graphs, one draw per graph and call.

    .. math:: y_n = b_{g(n)} \, x_n / (1 - p), \quad b_g \sim \mathrm{Bernoulli}(1 - p)

    In eval mode, and with p = 0, it is the identity. Gradients flow to the rows of the graphs that are kept.

    Args:
        rate (float, optional): probability p of a graph to be dropped, below 1. (default: 0.0)

    Shapes: x (M, ...), ptr (B+1,) -> (M, ...).
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise InputError(f"the rate of stochastic depth must be at least 0 and below 1, got {rate}: set drop_path")
        self.rate = rate

    def forward(self, x: Tensor, ptr: Tensor | None = None) -> Tensor:
        """Return the rows, those of dropped graphs as zeros.

        Args:
            x (Tensor): rows, sorted by graph.
            ptr (Tensor, optional): first row of each graph, and M at the end; None: each row is one. (default: None)
        """
        if not self.training or self.rate == 0:
            return x
        graphs = len(x) if ptr is None else ptr.numel() - 1
        remains = torch.rand(graphs, device=x.device) >= self.rate
        factor = remains.to(x.dtype).div_(1 - self.rate)
        if ptr is not None:
            factor = factor.repeat_interleave(ptr.diff(), output_size=len(x))
        return x * factor.view(-1, *[1] * (x.dim() - 1))

    def extra_repr(self) -> str:
        """Return the settings, as printed in a model."""
        return f"rate={self.rate}"
