"""Gated means of GatedGCN by fused C loops on a CPU (``native/gated_sum.c``), with the edge update behind them."""

from __future__ import annotations

import ctypes
import errno
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.mpnn.norm_update import (
    NormForm,
    apply_norm,
    form_of,
    kernel_can_run,
    moments_of,
    norm_gradients,
    plain_update,
    track,
)
from graphgps_kmip.native import dtype_flags, load, pointer, unavailable_reason

EPS = 1e-6  # added to the sum of gates, as in the public codes: a node without edges gets zeros
EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)


def cpu_can_run(*tensors: Tensor) -> bool:
    """Whether the C kernel supports these tensors of nodes and edges (32-bit indices)."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and len(x) < 2**31 for x in tensors)
    return fits and unavailable_reason("gated_sum", *dtype_flags(first.dtype)) is None


def gated_mean(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Gate the edges and add to each target the mean of its sources, weighted by the gates.

    .. math::
        g_e = W c_e + d_{t(e)} + h_{s(e)}, \qquad w_e = f_e \, \sigma(g_e), \qquad
        o_i = a_i + \sum_{e: t(e) = i} w_e \odot b_{s(e)} / (\textstyle\sum_{e: t(e) = i} w_e + 10^{-6})

    Gradients flow to own, other, edge, factor and weight, as often as wanted (a second derivative keeps tensors of
    size edges times channels). Results repeat bit for bit, on any number of threads. The backward pass keeps edge and
    gates.

    Args:
        own (Tensor): a and d of the targets, side by side.
        other (Tensor): b and h of the sources, side by side.
        edge (Tensor): c.
        factor (Tensor or None): f, or None for 1.
        source (Tensor): s, row of other.
        target (Tensor): t, row of own.
        weight (Tensor, optional): W; None: the identity. (default: None)

    Shapes:
        own (N, 2 C), other (M, 2 C), edge (E, C), factor (E, 1), source and target (E,), weight (C, C)
        -> o (N, C), g (E, C).

    Raises:
        IndexError: the source or target of an edge is not a node.
        MemoryError: not enough for the lists of edges.
    """
    return _GatedMean.apply(own, other, edge, weight, factor, None, None, source, target, None, None, False)


def gated_update(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    weight: Tensor,
    norm: BatchNorm,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    r"""Compute `gated_mean`, and in place of the gates the new edges ``[c +] relu(BN(g))``; see there.

    The backward pass reads gates and gradients of the edges once where the two operators one after the other would
    store those of the gates in between. `update_can_run` says for which norms.
    """
    inner, moments = norm.module, moments_of(norm.module)
    result = _GatedMean.apply(
        *(own, other, edge, weight, factor, inner.weight, inner.bias, source, target, moments),
        *(form_of(inner, True), residual),
    )
    track(inner, moments, len(edge))
    return result


def update_can_run(edge: Tensor, norm: nn.Module) -> bool:
    """Whether `gated_update` supports this norm of the edges, where `cpu_can_run` supports the tensors."""
    return kernel_can_run(edge, norm, None)


class _GatedMean(Function):
    @staticmethod
    def forward(
        ctx: Any,
        own: Tensor,
        other: Tensor,
        edge: Tensor,
        weight: Tensor | None,
        factor: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        source: Tensor,
        target: Tensor,
        moments: Tensor | None,
        form: NormForm | None,
        residual: bool,
    ) -> tuple[Tensor, Tensor]:
        """Keep the gates, the means, the inverse sums of gates, and the inputs."""
        own, other = own.contiguous(), other.contiguous()
        source, target = source.long().contiguous(), target.long().contiguous()
        factor = None if factor is None else factor.contiguous()
        gate = edge.clone(memory_format=torch.contiguous_format) if weight is None else linear(edge, weight)
        out, mean, inverse = (own.new_empty(len(own), gate.size(1)) for _ in range(3))
        sizes = _sizes(gate, own, other)
        results = map(pointer, (gate, out, mean, inverse))
        _check(
            _library(own).gated_forward(*map(pointer, (own, other, factor, source, target)), *sizes, *results),
        )
        affine, new = None, gate
        if form is not None:
            new, affine = apply_norm(gate, norm_weight, norm_bias, edge if residual else None, moments, form)
        inputs = (own, other, edge, weight, factor, norm_weight, norm_bias)
        ctx.save_for_backward(*inputs, source, target, moments, gate, mean, inverse, affine)
        ctx.form, ctx.residual = form, residual
        ctx.set_materialize_grads(False)  # the edge output of a last layer is unused
        return out, new

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_new: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass over the edges of each target, then over those of each source; then the product with the weight."""
        *inputs, source, target, moments, gate, mean, inverse, affine = ctx.saved_tensors
        if torch.is_grad_enabled():
            constants = {"source": source, "target": target, "moments": moments, "form": ctx.form}
            plain = partial(_plain, **constants, residual=ctx.residual)
            return *differentiable_gradients(plain, inputs, (grad_out, grad_new)), *[None] * 5
        own, other, edge, weight, factor, norm_weight, _ = inputs
        grad_out = torch.zeros_like(mean) if grad_out is None else grad_out.contiguous()
        grad_new = None if grad_new is None else grad_new.contiguous()
        slopes, grad_norm = None, (None, None)
        if ctx.form is not None and grad_new is not None:
            slopes, grad_norm = norm_gradients(grad_new, gate, norm_weight, affine, moments, ctx.form)
        grad_own, grad_other, grad_gate = (torch.empty_like(tensor) for tensor in (own, other, gate))
        grad_factor = None if factor is None else torch.empty_like(factor)
        relu = int(ctx.form is not None and ctx.form.relu)
        saved = map(pointer, (gate, mean, inverse, grad_own, grad_other, grad_gate, grad_factor))
        _check(
            _library(other).gated_backward(
                *map(pointer, (other, factor, source, target)),
                *_sizes(gate, own, other),
                *map(pointer, (grad_out, grad_new, None if slopes is None else affine, slopes)),
                relu,
                *saved,
            )
        )
        added = grad_new if ctx.residual else None
        grad_edge = _through(grad_gate, weight, added) if ctx.needs_input_grad[2] else None
        grad_weight = None if weight is None else grad_gate.T @ edge
        return grad_own, grad_other, grad_edge, grad_weight, grad_factor, *grad_norm, *[None] * 5


def _through(grad: Tensor, weight: Tensor | None, added: Tensor | None) -> Tensor:
    """Return the gradient of the edges: that of the gates through the weight, and that of the residual."""
    if weight is None:
        return grad if added is None else grad + added
    return grad @ weight if added is None else torch.addmm(added, grad, weight)


def _plain(
    own: Tensor,
    other: Tensor,
    edge: Tensor,
    weight: Tensor | None,
    factor: Tensor | None,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    *,
    source: Tensor,
    target: Tensor,
    moments: Tensor | None,
    form: NormForm | None,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    """The same results in operations that are differentiable as often as wanted, all edges at once."""
    (a, d), (b, h) = own.chunk(2, 1), other.chunk(2, 1)
    gate = (edge if weight is None else edge @ weight.T) + d[target] + h[source]
    share = gate.sigmoid() * (1.0 if factor is None else factor)
    nothing = torch.zeros_like(a)
    total, normaliser = (nothing.index_add(0, target, part) for part in (share * b[source], share))
    out = a + total / (normaliser + EPS)
    if form is None:
        return out, gate
    new = plain_update(gate, norm_weight, norm_bias, moments, form)
    return out, edge + new if residual else new


def _sizes(edge: Tensor, own: Tensor, other: Tensor) -> list[Any]:
    threads = max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))
    return [*map(ctypes.c_long, (len(edge), len(own), len(other))), edge.size(1), threads]


def _library(x: Tensor) -> ctypes.CDLL:
    return load("gated_sum", *dtype_flags(x.dtype))


def _check(failed: int) -> None:
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that do not exist")
    if failed:
        raise MemoryError("not enough memory for GatedGCN's lists of edges")
