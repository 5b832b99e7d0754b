"""The gates and gated means of GatedGCN in fused C loops: the same mathematics as gatedgcn.py with gated_sum.py.

Edges are sorted by target, for the backward by source too (a counting sort), and each row of an edge is read and
written once in a pass, where tensor operations pass over it some ten times.
"""

from __future__ import annotations

import ctypes
import errno
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.native import load, pointer, unavailable_reason

EDGE_WORK = 20_000  # channels of edges that take about as long as starting a thread (20 us)


def can_run(*tensors: Tensor) -> bool:
    """Whether the kernel takes these tensors of nodes and edges (32 bits count edges)."""
    first = tensors[0]
    fits = first.dtype in (torch.float32, torch.float64)
    fits &= all(x.device.type == "cpu" and x.dtype == first.dtype and len(x) < 2**31 for x in tensors)
    return fits and unavailable_reason("gated_sum", *_flags(first)) is None


def gated_mean(
    own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Gate the edges and add to each target the mean of its sources, weighted by the gates.

    .. math::
        g_e = c_e + d_{t(e)} + h_{s(e)}, \qquad w_e = f_e \, \sigma(g_e), \qquad
        o_i = a_i + \sum_{e: t(e) = i} w_e \odot b_{s(e)} / (\textstyle\sum_{e: t(e) = i} w_e + 10^{-6})

    Gradients flow to own, other, edge and factor, as often as wanted (a second derivative keeps what is as long as
    edges times channels). Results repeat bit for bit, on any number of threads.

    Args:
        own: a and d of the targets, side by side.
        other: b and h of the sources, side by side.
        edge: c; its memory is used for g.
        factor: f, or None for 1.
        source: s, row of other.
        target: t, row of own.

    Shapes:
        own (N, 2 C), other (M, 2 C), edge (E, C), factor (E, 1), source and target (E,) -> o (N, C), g (E, C).

    Raises:
        IndexError: an end of an edge is not there.
        MemoryError: there is none for the lists of edges.
    """
    return _GatedMean.apply(own, other, edge, factor, source, target)


class _GatedMean(Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, other: Tensor, edge: Tensor, factor: Tensor | None, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the gates over ``edge``; keep them, the means, and what these were divided by."""
        own, other = own.contiguous(), other.contiguous()
        source, target = source.long().contiguous(), target.long().contiguous()
        factor = None if factor is None else factor.contiguous()
        out, mean, inverse = (own.new_empty(len(own), edge.size(1)) for _ in range(3))
        ctx.sizes = len(edge), len(own), len(other)
        _check(
            _library(own).gated_forward(
                *map(pointer, (own, other, factor, source, target)),
                *_sizes(ctx.sizes, edge),
                *map(pointer, (edge, out, mean, inverse)),
            )
        )
        ctx.mark_dirty(edge)
        ctx.save_for_backward(other, edge, factor, source, target, mean, inverse)
        ctx.set_materialize_grads(False)  # the edges of the last layer go nowhere
        return out, edge

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass over the edges of each target, then over those of each source."""
        other, gate, factor, source, target, mean, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(grad_out, grad_gate, (gate, other, factor), (source, target), len(mean)), None, None
        grad_out = torch.zeros_like(mean) if grad_out is None else grad_out.contiguous()
        grad_gate = None if grad_gate is None else grad_gate.contiguous()
        grads = other.new_empty(len(mean), other.size(1)), torch.empty_like(other), torch.empty_like(gate)
        grad_factor = None if factor is None else torch.empty_like(factor)
        _check(
            _library(other).gated_backward(
                *map(pointer, (other, factor, source, target)),
                *_sizes(ctx.sizes, gate),
                *map(pointer, (grad_out, grad_gate, gate, mean, inverse, *grads, grad_factor)),
            )
        )
        return (*grads, grad_factor, None, None)


def _differentiable(
    grad_out: Tensor | None,
    grad_gate: Tensor | None,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    ends: tuple[Tensor, Tensor],
    num_targets: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of own, other, edge and factor in operations that are differentiable again.

    ``inputs`` holds the gates g that the forward wrote over the edges: a function of own, other and edge, whose
    gradient flows through this backward once more.
    """
    (gate, other, factor), (source, target), dim = inputs, ends, inputs[0].size(1)
    plain = partial(_plain_mean, source=source, target=target, num_targets=num_targets)
    grad_edge, grad_other, grad_factor = differentiable_gradients(plain, (gate, other, factor), (grad_out,))
    if grad_gate is not None:
        grad_edge = grad_edge + grad_gate
    nothing = gate.new_zeros(num_targets, dim)
    grad_own = torch.cat([nothing if grad_out is None else grad_out, nothing.index_add(0, target, grad_edge)], dim=1)
    if grad_other is not None:
        at_source = gate.new_zeros(len(other), dim).index_add(0, source, grad_edge)
        grad_other = grad_other + torch.nn.functional.pad(at_source, (dim, 0))
    return grad_own, grad_other, grad_edge, grad_factor


def _plain_mean(
    gate: Tensor, other: Tensor, factor: Tensor | None, source: Tensor, target: Tensor, num_targets: int
) -> Tensor:
    """The gated mean of each target, given the gates: (N, C)."""
    weight = gate.sigmoid() * (1.0 if factor is None else factor)
    nothing = gate.new_zeros(num_targets, gate.size(1))
    total = nothing.index_add(0, target, weight * other[:, : gate.size(1)][source])
    return total / (nothing.index_add(0, target, weight) + 1e-6)


def _sizes(sizes: tuple[int, int, int], edge: Tensor) -> list[Any]:
    threads = max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))
    return [*map(ctypes.c_long, sizes), edge.size(1), threads]


def _library(x: Tensor) -> ctypes.CDLL:
    return load("gated_sum", *_flags(x))


def _flags(x: Tensor) -> tuple[str, ...]:
    return ("-DDOUBLE",) if x.dtype == torch.float64 else ()


def _check(failed: int) -> None:
    if failed == errno.EINVAL:
        raise IndexError("edge_index names nodes that are not there")
    if failed:
        raise MemoryError("GatedGCN needs more memory for lists of its edges than there is")
