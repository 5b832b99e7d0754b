r"""Batch norm with ReLU and residual in one operator: the update of nodes and edges in message passing layers.

.. math:: y = r + \mathrm{relu}(\mathrm{BN}(x))

On a CPU it reads its rows once for the statistics and once for the result (``native/batch_norm.c``), and keeps x alone
for the backward pass; torch's three operators write a tensor each, of which two are kept.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.common.operators import are_plain
from graphgps_kmip.native import dtype_flags, load, pointer, unavailable_reason

KERNEL = "batch_norm"
ROW_WORK = 50_000  # numbers that take about as long as starting a thread (20 us)


def norm_update(x: Tensor, norm: BatchNorm, relu: bool = False, residual: Tensor | None = None) -> Tensor:
    """Normalise the rows, with the running statistics as the module keeps them; then ReLU, then add the residual.

    Gradients flow to x, residual and the parameters of the norm, as often as wanted. Results on a CPU repeat bit for
    bit, on any number of threads.

    Args:
        x (Tensor): rows.
        norm (BatchNorm): torch_geometric's.
        relu (bool, optional): apply a ReLU. (default: False)
        residual (Tensor, optional): added behind it. (default: None)

    Shapes:
        x, residual (P, C) -> (P, C).
    """
    if not kernel_can_run(x, norm, residual):
        out = norm(x)
        out = torch.relu(out) if relu else out
        return out if residual is None else residual + out
    inner = norm.module
    moments = moments_of(inner)
    out = _NormUpdate.apply(x, inner.weight, inner.bias, residual, moments, form_of(inner, relu))
    track(inner, moments, len(x))
    return out


class NormForm(NamedTuple):
    """Constants: eps, whether there is a ReLU, and whether the statistics are those of the rows, else given ones."""

    eps: float
    relu: bool
    of_rows: bool


def kernel_can_run(x: Tensor, norm: nn.Module, residual: Tensor | None) -> bool:
    """Whether this is a plain batch norm of at least two rows, in a dtype that the kernel has, and all shapes fit."""
    if type(getattr(norm, "module", None)) is not nn.BatchNorm1d or x.device.type != "cpu" or x.dim() != 2:
        return False
    if not are_plain((x, residual)):
        return False
    fits = x.dtype in (torch.float32, torch.float64) and len(x) > 1 and norm.module.affine
    fits = fits and norm.module.weight.dtype == x.dtype and norm.module.num_features == x.size(1)
    fits = fits and (residual is None or (residual.dtype == x.dtype and residual.shape == x.shape))
    return fits and unavailable_reason(KERNEL, *dtype_flags(x.dtype)) is None


def form_of(norm: nn.BatchNorm1d, relu: bool) -> NormForm:
    """Return the constants of a module."""
    return NormForm(norm.eps, relu, norm.training or norm.running_mean is None)


def moments_of(norm: nn.BatchNorm1d) -> Tensor:
    """Return memory for mean and biased variance, (2, C) in double precision; in eval mode the running ones."""
    if norm.training or norm.running_mean is None:
        return torch.empty(2, norm.num_features, dtype=torch.float64)
    return torch.stack([norm.running_mean, norm.running_var]).double()


@torch.no_grad()
def track(norm: nn.BatchNorm1d, moments: Tensor, rows: int) -> None:
    """Move the running statistics as torch does, by the unbiased variance; in training only."""
    if not norm.training or norm.running_mean is None:
        return
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    mean, variance = moments.to(norm.running_mean.dtype)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * (rows / (rows - 1)), share)


def plain_update(x: Tensor, weight: Tensor, bias: Tensor, moments: Tensor, form: NormForm) -> Tensor:
    """The same without the residual, in operations that are differentiable as often as wanted."""
    given = (None, None) if form.of_rows else moments.to(x.dtype).unbind()
    out = functional.batch_norm(x, *given, weight, bias, training=form.of_rows, eps=form.eps)
    return torch.relu(out) if form.relu else out


class _NormUpdate(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, moments: Tensor, form: NormForm
    ) -> Tensor:
        """Keep x and vectors of C numbers."""
        x = x.contiguous()
        out, affine = apply_norm(x, weight, bias, residual, moments, form)
        ctx.save_for_backward(x, weight, bias, moments, affine)
        ctx.form, ctx.has_residual = form, residual is not None
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass over the rows for the sums, then for the gradient of x."""
        x, weight, bias, moments, affine = ctx.saved_tensors
        grad_residual = grad if ctx.has_residual else None
        if torch.is_grad_enabled():
            plain = partial(plain_update, moments=moments, form=ctx.form)
            return *differentiable_gradients(plain, (x, weight, bias), (grad,)), grad_residual, None, None
        rows = grad.contiguous()
        slopes, (grad_weight, grad_bias) = norm_gradients(rows, x, weight, affine, moments, ctx.form)
        out = torch.empty_like(x)
        _call("norm_backward", x, (rows, x, affine, slopes), (int(ctx.form.relu),), (out,))
        return out, grad_weight, grad_bias, grad_residual, None, None


def apply_norm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, moments: Tensor, form: NormForm
) -> tuple[Tensor, Tensor]:
    """Return the update of contiguous rows (P, C), and the s and t of ``x s + t``, (2, C); may write ``moments``."""
    out, affine = torch.empty_like(x), x.new_empty(2, x.size(1))
    residual = None if residual is None else residual.contiguous()
    _call("norm_forward", x, (x, weight, bias, residual), _words(form), (moments, affine, out))
    return out, affine


def norm_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, affine: Tensor, moments: Tensor, form: NormForm
) -> tuple[Tensor, Tensor]:
    """Return what the statistics add to the gradient of x, as slope and offset (2, C), and those of weight and bias."""
    slopes, gradients = torch.empty_like(affine), torch.empty_like(affine)
    _call("norm_gradients", x, (grad, x, weight, affine, moments), _words(form), (slopes, gradients))
    return slopes, gradients


def _words(form: NormForm) -> tuple[Any, ...]:
    return int(form.relu), int(form.of_rows), ctypes.c_double(form.eps)


def _call(
    name: str, x: Tensor, given: tuple[Tensor | None, ...], words: tuple[Any, ...], results: tuple[Tensor, ...]
) -> None:
    threads = max(1, min(torch.get_num_threads(), x.numel() // ROW_WORK))
    function = getattr(load(KERNEL, *dtype_flags(x.dtype)), name)
    sizes = (ctypes.c_long(len(x)), x.size(1), threads)
    if function(*map(pointer, given), *words, *sizes, *map(pointer, results)):
        raise MemoryError("not enough memory for the sums of a batch norm")
