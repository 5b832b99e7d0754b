"""Gated means of GatedGCN by fused C loops on a CPU (``ops/native/gated_sum.c``)."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import new_tensors, operator, refuse_second_derivative

EPS = 1e-6  # added to the sum of gates, as in the public codes: a node without edges gets zeros
EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)


def can_run(*tensors: Tensor) -> bool:
    """Whether the C loops support these tensors of nodes and edges (32-bit indices), outside of autocast."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and x.size(0) < 2**31 for x in tensors)
    fits &= not torch.is_autocast_enabled("cpu")
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

    Gradients flow to own, other, edge, factor and weight. Results repeat bit for bit, on any number of threads. The
    backward pass keeps edge and gates.

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
    edge = edge if weight is None else linear(edge, weight)
    out, gate, _, _ = _gated_mean(own, other, edge, factor, source, target)
    return out, gate


def _mean(
    own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return o, g, the means, and the inverse sums of gates."""
    own, other, edge = _rows(own), _rows(other), edge.contiguous()
    source, target = source.long().contiguous(), target.long().contiguous()
    factor = None if factor is None else factor.contiguous()
    gate = torch.empty_like(edge)
    out, mean, inverse = (own.new_empty(len(own), edge.size(1)) for _ in range(3))
    _check(
        _library(own).gated_forward(
            *(pointer(rows, rows=True) for rows in (own, other)),
            *map(pointer, (edge, factor, source, target)),
            *_sizes(edge, own, other),
            *map(pointer, (gate, out, mean, inverse)),
        )
    )
    return out, gate, mean, inverse


def _mean_back(
    grad_out: Tensor,
    grad_gate: Tensor | None,
    gate: Tensor,
    other: Tensor,
    factor: Tensor | None,
    source: Tensor,
    target: Tensor,
    mean: Tensor,
    inverse: Tensor,
) -> list[Tensor]:
    """Pass over the edges of each target, then over those of each source.

    Returns the gradients of own, other and edge, and that of factor if there is one.
    """
    other = other.contiguous()
    grad_out, gate, mean, inverse = (tensor.contiguous() for tensor in (grad_out, gate, mean, inverse))
    grad_gate, factor = (None if tensor is None else tensor.contiguous() for tensor in (grad_gate, factor))
    source, target = source.long().contiguous(), target.long().contiguous()
    grad_own, grad_other = other.new_empty(len(mean), other.size(1)), torch.empty_like(other)
    grad_edge, grad_factor = torch.empty_like(gate), None if factor is None else torch.empty_like(factor)
    _check(
        _library(other).gated_backward(
            pointer(other, rows=True),
            *map(pointer, (factor, source, target)),
            *_sizes(gate, grad_own, other),
            *map(pointer, (grad_out, grad_gate, gate, mean, inverse)),
            *(pointer(rows, rows=True) for rows in (grad_own, grad_other)),
            *map(pointer, (grad_edge, grad_factor)),
        )
    )
    return [grad_own, grad_other, grad_edge] if factor is None else [grad_own, grad_other, grad_edge, grad_factor]


def _keep_mean(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    _, other, _, factor, source, target = inputs
    _, gate, *constants = output
    ctx.save_for_backward(gate, other, factor, source, target, *constants)
    ctx.mark_non_differentiable(*constants)
    ctx.set_materialize_grads(False)  # the edge output of a last layer is unused


def _mean_gradients(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    refuse_second_derivative("GatedGCN")
    saved = ctx.saved_tensors
    grad_out = torch.zeros_like(saved[5]) if grad_out is None else grad_out  # shaped as the means
    grads = _gated_mean_backward(grad_out, grad_gate, *saved)
    return *grads, *[None] * (6 - len(grads))


def _empty_mean(own: Tensor, edge: Tensor) -> tuple[Tensor, ...]:
    out = own.new_empty(own.size(0), edge.size(1))
    return out, *new_tensors(edge), *(torch.empty_like(out) for _ in range(2))


_gated_mean_backward = operator(
    "gated_mean_backward(Tensor grad_out, Tensor? grad_gate, Tensor gate, Tensor other, Tensor? factor, Tensor source, "
    "Tensor target, Tensor mean, Tensor inverse) -> Tensor[]",
    _mean_back,
    lambda grad_out, grad_gate, gate, other, factor, source, target, mean, inverse: [  # noqa: ARG005
        other.new_empty(mean.size(0), other.size(1)), *new_tensors(other, gate, factor)
    ],
)  # fmt: skip
_gated_mean = operator(
    "gated_mean(Tensor own, Tensor other, Tensor edge, Tensor? factor, Tensor source, Tensor target) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _mean,
    lambda own, other, edge, *_: _empty_mean(own, edge),  # noqa: ARG005
    keep=_keep_mean,
    gradients=_mean_gradients,
)


def _sizes(edge: Tensor, own: Tensor, other: Tensor) -> list[Any]:
    threads = max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))
    lengths = (len(edge), len(own), len(other), own.stride(0), other.stride(0))
    return [*map(ctypes.c_long, lengths), edge.size(1), threads]


def _rows(x: Tensor) -> Tensor:
    """Return rows whose numbers are side by side; the rows may be apart."""
    return x if x.stride(1) == 1 else x.contiguous()


def _library(x: Tensor) -> ctypes.CDLL:
    return load("gated_sum", *dtype_flags(x.dtype))


def _check(failed: int) -> None:
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that do not exist")
    if failed:
        raise MemoryError("not enough memory for GatedGCN's lists of edges")
