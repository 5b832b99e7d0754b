"""Gated means and edge updates of GatedGCN by fused C loops on a CPU (``ops/native/gated_sum.c``)."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import linear

from graphgps_kmip.ops.dropout import draw_mask
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import are_plain, new_tensors, operator, refuse_second_derivative

EPS = 1e-6  # added to the sum of gates, as in the public codes: a node without edges gets zeros
EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)
ROWS = 2048  # of one product: MKL takes 1.5 times as long for all edges at once at width 108, on an AMD CPU


def can_run(*tensors: Tensor) -> bool:
    """Whether the C loops support these tensors of nodes and edges (32-bit indices), outside of autocast."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and x.size(0) < 2**31 for x in tensors)
    fits &= not torch.is_autocast_enabled("cpu")
    return fits and unavailable_reason("gated_sum", *dtype_flags(first.dtype)) is None


def can_update(edge: Tensor, norm: nn.Module, act: nn.Module, dropout: float) -> bool:
    """Whether `gated_update` supports this norm and activation, where `can_run` holds."""
    batch_norm = getattr(norm, "module", None)
    return (
        type(act) is nn.ReLU
        and type(batch_norm) is nn.BatchNorm1d
        and dropout < 1
        and None not in (batch_norm.weight, batch_norm.running_mean, batch_norm.momentum)
        and batch_norm.weight.dtype == edge.dtype
        and are_plain((edge,))
    )


def gated_mean(
    x_target: Tensor,
    x_source: Tensor,
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

    Gradients flow to x_target, x_source, edge, factor and weight. Results repeat bit for bit.

    Args:
        x_target (Tensor): a and d of the targets, side by side.
        x_source (Tensor): b and h of the sources, side by side.
        edge (Tensor): c.
        factor (Tensor or None): f, or None for 1.
        source (Tensor): s, row of x_source.
        target (Tensor): t, row of x_target.
        weight (Tensor, optional): W; None: the identity. (default: None)

    Shapes:
        x_target (N, 2 C), x_source (M, 2 C), edge (E, C), factor (E, 1), source and target (E,), weight (C, C)
        -> o (N, C), g (E, C).

    Raises:
        IndexError: the source or target of an edge is not a node.
    """
    edge = edge if weight is None else linear_rows(edge, weight)
    out, gate, _, _ = _gated_mean(x_target, x_source, edge, factor, source, target)
    return out, gate


def gated_update(
    x_target: Tensor,
    x_source: Tensor,
    edge: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    weight: Tensor,
    norm: nn.Module,
    dropout: float,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    r"""Gated means as `gated_mean`, and the new edges in place of the gates; the gradient of the norm is never stored.

    .. math:: c_e' = [c_e +] \, \mathrm{drop}(\mathrm{relu}(\mathrm{BN}(g_e)))

    Other arguments are ``norm``, torch_geometric's BatchNorm, whose running statistics are updated in training mode,
    ``dropout``, 0 in eval mode, with the draws of `ops.dropout`, and ``residual``: add c to the new edges.
    Shapes: as of `gated_mean` -> o (N, C), c' (E, C).
    """
    batch_norm, num_edges = norm.module, edge.size(0)
    batch_moments = batch_norm.training and num_edges > 1
    if batch_moments:
        moments = edge.new_empty(2, edge.size(1), dtype=torch.float64)
    else:
        moments = torch.stack([batch_norm.running_mean, batch_norm.running_var]).double()
    keep = draw_mask(edge.shape, dropout) if dropout and num_edges else None
    settings = {"keep_scale": 1 / (1 - dropout), "eps": batch_norm.eps, "batch_moments": batch_moments}
    tensors = x_target, x_source, edge, factor, weight, torch.stack([batch_norm.weight, batch_norm.bias])
    result = _GatedUpdate.apply(*tensors, source, target, moments, keep, settings, residual)
    if batch_moments:
        with torch.no_grad():
            batch_norm.num_batches_tracked += 1
            unbiased = moments[1] * (num_edges / (num_edges - 1))
            batch_norm.running_mean.lerp_(moments[0].to(edge.dtype), batch_norm.momentum)
            batch_norm.running_var.lerp_(unbiased.to(edge.dtype), batch_norm.momentum)
    return result


class _GatedUpdate(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_target: Tensor,
        x_source: Tensor,
        edge: Tensor,
        factor: Tensor | None,
        weight: Tensor,
        norm: Tensor,
        source: Tensor,
        target: Tensor,
        moments: Tensor,
        keep: Tensor | None,
        settings: dict[str, float],
        residual: bool,
    ) -> tuple[Tensor, Tensor]:
        edge = edge.contiguous()
        gate = _multiply(edge, weight.T)  # the C loops put the gates in its place
        new_edge, affine = torch.empty_like(gate), torch.empty_like(norm)
        ctx.norm_arguments = settings | {"norm": norm, "moments": moments, "affine": affine, "keep": keep}
        update = {"edge": new_edge, "residual": edge if residual else None} | ctx.norm_arguments
        out, mean, inverse = _run_forward(x_target, x_source, gate, gate, factor, source, target, **update)
        ctx.save_for_backward(gate, x_source, factor, source, target, mean, inverse, edge, weight)
        ctx.residual = residual
        ctx.set_materialize_grads(False)  # the edge output of a last layer is unused
        return out, new_edge

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_new: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("GatedGCN")
        *saved, edge, weight = ctx.saved_tensors
        grad_norm = None if grad_new is None else torch.zeros_like(ctx.norm_arguments["norm"])
        update = {"grad_norm": grad_norm} | ctx.norm_arguments
        grad_x_target, grad_x_source, grad_gate, *grad_factor = _run_backward(grad_out, grad_new, *saved, **update)
        grad_edge = None
        if ctx.needs_input_grad[2]:
            with_residual = ctx.residual and grad_new is not None
            grad_edge = _multiply(grad_gate, weight, grad_new if with_residual else None)
        grads = grad_x_target, grad_x_source, grad_edge, *(grad_factor or [None]), grad_gate.T @ edge, grad_norm
        return *grads, *[None] * 6


def linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``linear(x, weight, bias)``, some rows at a time: x (P, D), weight (C, D), bias (C,) -> (P, C)."""
    if not are_plain((x, weight)):
        return linear(x, weight, bias)
    return _LinearRows.apply(x, weight, bias)


class _LinearRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight.T, None if bias is None else bias.expand(len(x), -1))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("GatedGCN")
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias = ctx.needs_input_grad
        return _multiply(grad, weight) if needs_x else None, grad.T @ x, grad.sum(0) if needs_bias else None


def _multiply(rows: Tensor, matrix: Tensor, offset: Tensor | None = None) -> Tensor:
    product = rows.new_empty(len(rows), matrix.size(1))
    for start in range(0, len(rows), ROWS):
        part = slice(start, start + ROWS)
        if offset is None:
            torch.mm(rows[part], matrix, out=product[part])
        else:
            torch.addmm(offset[part], rows[part], matrix, out=product[part])
    return product


def _mean(
    x_target: Tensor, x_source: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return o, g, the means, and the inverse sums of gates."""
    gate = torch.empty_like(edge, memory_format=torch.contiguous_format)
    out, mean, inverse = _run_forward(x_target, x_source, edge, gate, factor, source, target)
    return out, gate, mean, inverse


def _mean_back(grad_out: Tensor, grad_gate: Tensor | None, *saved: Tensor | None) -> list[Tensor]:
    return _run_backward(grad_out, grad_gate, *saved)


def _keep_mean(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    _, x_source, _, factor, source, target = inputs
    _, gate, *constants = output
    ctx.save_for_backward(gate, x_source, factor, source, target, *constants)
    ctx.mark_non_differentiable(*constants)
    ctx.set_materialize_grads(False)  # the edge output of a last layer is unused


def _mean_gradients(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("GatedGCN")
    saved = ctx.saved_tensors
    grad_out = torch.zeros_like(saved[5]) if grad_out is None else grad_out  # shaped as the means
    grads = _gated_mean_backward(grad_out, grad_gate, *saved)
    return *grads, *[None] * (6 - len(grads))


def _empty_mean(x_target: Tensor, edge: Tensor) -> tuple[Tensor, ...]:
    out = x_target.new_empty(x_target.size(0), edge.size(1))
    return out, *new_tensors(edge), *(torch.empty_like(out) for _ in range(2))


_gated_mean_backward = operator(
    "gated_mean_backward(Tensor grad_out, Tensor? grad_gate, Tensor gate, Tensor x_source, Tensor? factor, "
    "Tensor source, Tensor target, Tensor mean, Tensor inverse) -> Tensor[]",
    _mean_back,
    lambda grad_out, grad_gate, gate, x_source, factor, source, target, mean, inverse: [  # noqa: ARG005
        x_source.new_empty(mean.size(0), x_source.size(1)), *new_tensors(x_source, gate, factor)
    ],
)  # fmt: skip
_gated_mean = operator(
    "gated_mean(Tensor x_target, Tensor x_source, Tensor edge, Tensor? factor, Tensor source, Tensor target) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _mean,
    lambda x_target, x_source, edge, *_: _empty_mean(x_target, edge),  # noqa: ARG005
    keep=_keep_mean,
    gradients=_mean_gradients,
)


class _Arguments(ctypes.Structure):
    """The public fields of ``gated_sum.c``'s struct Gated, in its order."""

    _fields_ = [
        *((name, ctypes.c_long) for name in "num_edges num_targets num_sources target_row source_row dim".split()),
        *((name, ctypes.c_long) for name in "num_threads batch_moments".split()),
        *((name, ctypes.c_double) for name in "keep_scale eps".split()),
        *((name, ctypes.c_void_p) for name in "x_target x_source x_edge factor source target gate".split()),
        *((name, ctypes.c_void_p) for name in "out mean inverse grad_out grad_edge grad_x_target".split()),
        *((name, ctypes.c_void_p) for name in "grad_x_source grad_gate grad_factor norm residual keep".split()),
        *((name, ctypes.c_void_p) for name in "moments affine edge grad_norm".split()),
    ]


def _run_forward(
    x_target: Tensor,
    x_source: Tensor,
    x_edge: Tensor,
    gate: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    **update: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    x_target, x_source = (x if x.stride(1) == 1 else x.contiguous() for x in (x_target, x_source))
    out, mean, inverse = (x_target.new_empty(len(x_target), gate.size(1)) for _ in range(3))
    arrays = {"x_edge": x_edge, "factor": factor, "out": out, "mean": mean, "inverse": inverse}
    _run_kernel("gated_forward", x_target, x_source, gate, source, target, **arrays, **update)
    return out, mean, inverse


def _run_backward(
    grad_out: Tensor | None,
    grad_edge: Tensor | None,
    gate: Tensor,
    x_source: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    mean: Tensor,
    inverse: Tensor,
    **update: Any,
) -> list[Tensor]:
    x_source, grad_out = x_source.contiguous(), torch.zeros_like(mean) if grad_out is None else grad_out
    grads = [x_source.new_empty(len(mean), x_source.size(1)), *new_tensors(x_source, gate, factor)]
    arrays = {"grad_out": grad_out, "grad_edge": grad_edge, "mean": mean, "inverse": inverse, "factor": factor}
    arrays |= dict(zip(("grad_x_target", "grad_x_source", "grad_gate", "grad_factor"), grads, strict=False))
    _run_kernel("gated_backward", grads[0], x_source, gate, source, target, **arrays, **update)
    return grads


def _run_kernel(
    function: str, x_target: Tensor, x_source: Tensor, gate: Tensor, source: Tensor, target: Tensor, **more: Any
) -> None:
    """Call a C function; ``more`` are fields of `_Arguments`, and x_target has the strides of its gradient."""
    arrays = more | {"gate": gate, "source": source.long(), "target": target.long()}
    arrays = {name: value.contiguous() if isinstance(value, Tensor) else value for name, value in arrays.items()}
    addresses = {name: pointer(value) if isinstance(value, Tensor | None) else value for name, value in arrays.items()}
    failed = getattr(load("gated_sum", *dtype_flags(gate.dtype)), function)(
        ctypes.byref(
            _Arguments(
                num_edges=gate.size(0),
                num_targets=x_target.size(0),
                num_sources=x_source.size(0),
                target_row=x_target.stride(0),
                source_row=x_source.stride(0),
                dim=gate.size(1),
                num_threads=max(1, min(torch.get_num_threads(), gate.numel() // EDGE_WORK)),
                x_target=pointer(x_target, rows=True),
                x_source=pointer(x_source, rows=True),
                **addresses,
            )
        )
    )
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that do not exist")
    if failed:
        raise MemoryError("not enough memory for GatedGCN's lists of edges")
