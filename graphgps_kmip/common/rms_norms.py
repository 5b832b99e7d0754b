"""AdaRMSNorm (PPGT) and the table of norms of PPGT's layers, stems and heads; all are called ``norm(x)`` on rows.

They are here and not in `model` because attentions and encodings use them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import refuse_second_derivative

EPS = 1e-6  # in both roots, as in the public code
# Numbers of one chunk of rows on the CPU: its temporary tensors stay in the cache (2 MiB in float32).
CHUNK_NUMBERS = 2**18


class AdaRMSNorm(nn.Module):
    r"""Adaptive RMSNorm (PPGT, section on adaptive root-mean-square normalisation): a learned part of the scale stays.

    .. math::
        y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \sqrt{\mathrm{mean}((\alpha x + \beta)^2) + \epsilon}

    with means over the last dimension and learned vectors alpha and beta. With alpha 0 and beta 1, the start, it is
    RMSNorm with weight 1 (up to epsilon); with alpha 1 and beta 0 it is the identity. A row of zeros stays zero. It
    keeps x and two numbers per row for the backward pass.

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
        return _Scale.apply(x, self.alpha, self.beta, self.eps)


def _chunks(x: Tensor) -> list[slice]:
    """Return the rows of each chunk of a matrix: one chunk on a GPU."""
    rows = max(1, CHUNK_NUMBERS // max(1, x.size(1))) if x.device.type == "cpu" else max(1, len(x))
    return [slice(start, start + rows) for start in range(0, len(x), rows)]


def _mean_square(rows: Tensor) -> Tensor:
    """Return the mean of the squares of each row, (M, C) -> (M, 1), in one pass."""
    return torch.linalg.vector_norm(rows, dim=-1, keepdim=True).square_().div_(max(1, rows.size(-1)))


class _Scale(Function):
    """``y = r t x`` with ``r = 1 / sqrt(mean(x^2) + eps)``, ``t = sqrt(mean(u^2) + eps)``, ``u = alpha x + beta``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor, beta: Tensor, eps: float) -> Tensor:
        """Shapes: x (..., C); r and t (M, 1) for M rows."""
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
        # sums over rows of w, w x and w x^2, w the gradient of mean(u^2)
        ones, first, second = a.new_zeros(()), torch.zeros_like(a), torch.zeros_like(a)
        for part in _chunks(rows):
            wide, g, r_, t_ = rows[part].to(kind), grads[part].to(kind), r[part], t[part]
            d = (g * wide).mv(each)[:, None]
            w = d * r_ / (channels * t_)  # (m, 1)
            ones += w.sum()
            first.addmv_(wide.T, w[:, 0])
            second.addmv_((wide * wide).T, w[:, 0])
            # the factor of x in the gradient becomes the gradient
            found = torch.addcmul(d * t_ * r_.pow(3) / -channels, w, square)
            found.mul_(wide).addcmul_(w, product)
            torch.addcmul(found, g, r_ * t_, out=grad_x[part])
        grad_alpha, grad_beta = a * second + b * first, a * first + b * ones
        return grad_x.view(x.shape), grad_alpha.to(alpha.dtype), grad_beta.to(beta.dtype), None


# Name, as in public files -> channels C -> module (..., C) -> (..., C); batch_norm takes rows only, (M, C).
NORM_LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "ada_rms_norm": AdaRMSNorm,
    "rms_norm": partial(nn.RMSNorm, eps=EPS),
    "rms_norm_eps0": nn.RMSNorm,  # torch's default: the rounding unit of the type
    "rms_norm_eps1": partial(nn.RMSNorm, eps=1.0),
    "batch_norm": partial(BatchNorm, allow_single_element=True),
    "layer_norm": nn.LayerNorm,
    "none": lambda dim: nn.Identity(),  # noqa: ARG005
}
