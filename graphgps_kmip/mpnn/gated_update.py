"""GatedGCN's linear maps, gated means and edge update in one operator, on a CPU.

Autograd keeps less and passes over less than for the operators one after the other: the four maps of the nodes are one
matrix product, whose biases the kernel adds and whose gradient is one product too; gates and gradients of the edges are
read once where those of the gates would be stored in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear
from torch_geometric.nn import BatchNorm

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.mpnn.gated_mean import pass_backward, pass_forward, plain_gates_and_means
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

Weights = tuple[Tensor, Tensor, Tensor]


def gated_update(
    x: Tensor,
    x_source: Tensor | None,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    weights: Weights,
    norm: BatchNorm,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    r"""Compute `gated_mean` behind the linear maps of a layer, and in place of the gates the new edges.

    .. math::
        o_i = A x_i + \sum_{e: t(e) = i} w_e \odot B x_{s(e)} / (\textstyle\sum_{e: t(e) = i} w_e + 10^{-6}), \qquad
        g_e = C c_e + D x_{t(e)} + E x_{s(e)}, \qquad c_e' = [c_e +] \, \mathrm{relu}(\mathrm{BN}(g_e))

    with :math:`w_e = f_e \, \sigma(g_e)`. Gradients, results and errors are as those of `gated_mean`; `update_can_run`
    says for which norms.

    Args:
        x (Tensor): features of the targets.
        x_source (Tensor or None): features of the sources; None: they are the targets.
        edge (Tensor): c.
        factor (Tensor or None): f, or None for 1.
        source (Tensor): s, row of the sources.
        target (Tensor): t, row of x.
        weights (tuple[Tensor, Tensor, Tensor]): those of A, D, B and E, one below the other, their biases, C's weight.
        norm (BatchNorm): of the edges.
        residual (bool): add c to the new edges.

    Shapes:
        x (N, C), x_source (M, C), edge (E, C), factor (E, 1), source and target (E,), weights (4 C, C), (4 C,), (C, C)
        -> o (N, C), c' (E, C).
    """
    inner, moments = norm.module, moments_of(norm.module)
    result = _GatedUpdate.apply(
        *(x, x_source, edge, factor, *weights, inner.weight, inner.bias),
        *(source, target, moments, form_of(inner, True), residual),
    )
    track(inner, moments, len(edge))
    return result


def update_can_run(edge: Tensor, norm: nn.Module) -> bool:
    """Whether `gated_update` supports this norm of the edges, where `gated_mean.can_run` supports the tensors."""
    return kernel_can_run(edge, norm, None)


class _GatedUpdate(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        x_source: Tensor | None,
        edge: Tensor,
        factor: Tensor | None,
        node_weight: Tensor,
        bias: Tensor,
        edge_weight: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        source: Tensor,
        target: Tensor,
        moments: Tensor,
        form: NormForm,
        residual: bool,
    ) -> tuple[Tensor, Tensor]:
        """Keep the gates, B x and E x, the means, the inverse sums of gates, and the inputs."""
        own, other = _halves(x, x_source, node_weight)
        gate = linear(edge, edge_weight)
        out, mean, inverse = pass_forward(own, other, gate, factor, source, target, gate, bias)
        new, affine = apply_norm(gate, norm_weight, norm_bias, edge if residual else None, moments, form)
        inputs = (x, x_source, edge, factor, node_weight, bias, edge_weight, norm_weight, norm_bias)
        ctx.save_for_backward(*inputs, source, target, moments, gate, other, mean, inverse, affine)
        ctx.form, ctx.residual = form, residual
        ctx.set_materialize_grads(False)  # the edge output of a last layer is unused
        return out, new

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_new: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass over the edges of each target, then over those of each source; then the products with the weights."""
        *inputs, source, target, moments, gate, other, mean, inverse, affine = ctx.saved_tensors
        if torch.is_grad_enabled():
            constants = {"source": source, "target": target, "moments": moments, "form": ctx.form}
            plain = partial(_plain_update, **constants, residual=ctx.residual)
            return *differentiable_gradients(plain, inputs, (grad_out, grad_new)), *[None] * 5
        x, x_source, edge, factor, node_weight, bias, edge_weight, norm_weight, _ = inputs
        grad_out = torch.zeros_like(mean) if grad_out is None else grad_out
        grad_new = None if grad_new is None else grad_new.contiguous()
        slopes, grad_norm = None, (None, None)
        if grad_new is not None:
            slopes, grad_norm = norm_gradients(grad_new, gate, norm_weight, affine, moments, ctx.form)
        grads, whole = _empty_halves(len(mean), other, x_source is None)
        saved = gate, other, factor, source, target, mean, inverse
        grad_gate, grad_factor = pass_backward(grad_out, grad_new, *saved, *grads, bias, affine, slopes, ctx.form.relu)
        grad_edge = None
        if ctx.needs_input_grad[2]:
            added = grad_new if ctx.residual else None
            grad_edge = grad_gate @ edge_weight if added is None else torch.addmm(added, grad_gate, edge_weight)
        xs = (x,) if x_source is None else (x, x_source)
        from_nodes = _node_gradients(xs, whole, node_weight, ctx.needs_input_grad[:2])
        return (*from_nodes[0], grad_edge, grad_factor, *from_nodes[1:], grad_gate.T @ edge, *grad_norm, *[None] * 5)


def _halves(x: Tensor, x_source: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return A x and D x of the targets, B x and E x of the sources, (N, 2 C) each, without biases."""
    if x_source is None:
        return linear(x, weight).chunk(2, 1)
    return tuple(linear(one, part) for one, part in zip((x, x_source), weight.chunk(2), strict=True))


def _empty_halves(num_targets: int, other: Tensor, joint: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Return memory for the gradients of `_halves`, and the matrices that they are parts of."""
    if joint:
        whole = other.new_empty(num_targets, 2 * other.size(1))
        return whole.chunk(2, 1), (whole,)
    halves = other.new_empty(num_targets, other.size(1)), other.new_empty(other.shape)
    return halves, halves


def _node_gradients(
    xs: tuple[Tensor, ...], grads: tuple[Tensor, ...], weight: Tensor, needed: tuple[bool, ...]
) -> tuple[list[Tensor | None], Tensor, Tensor]:
    """Return the gradients of x and x_source, of the maps' weight, and of the bias."""
    weights = weight.chunk(len(xs))
    from_xs = [grad @ part if need else None for grad, part, need in zip(grads, weights, needed, strict=False)]
    from_weight = torch.cat([(x.T @ grad).T for x, grad in zip(xs, grads, strict=True)])
    bias = torch.cat([grad.new_ones(len(grad)) @ grad for grad in grads])  # faster than a sum of rows
    return [*from_xs, None][:2], from_weight, bias


def _plain_update(
    x: Tensor,
    x_source: Tensor | None,
    edge: Tensor,
    factor: Tensor | None,
    node_weight: Tensor,
    bias: Tensor,
    edge_weight: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *,
    source: Tensor,
    target: Tensor,
    moments: Tensor,
    form: NormForm,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    """The same results in operations that are differentiable as often as wanted, all edges at once."""
    own, other = (half + part for half, part in zip(_halves(x, x_source, node_weight), bias.chunk(2), strict=True))
    out, gate = plain_gates_and_means(own, other, edge @ edge_weight.T, factor, source, target)
    new = plain_update(gate, norm_weight, norm_bias, moments, form)
    return out, edge + new if residual else new
