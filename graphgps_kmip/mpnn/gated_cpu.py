"""The gates and gated means of GatedGCN in fused C loops: the same mathematics as gatedgcn.py with gated_sum.py.

Edges are sorted by target, for the backward by source too (a counting sort), and each row of an edge is read and
written once in a pass, where tensor operations pass over it some ten times.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

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

    Gradients flow to own, other, edge and factor, once. Results repeat bit for bit, on any number of threads.

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
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_gate: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pass over the edges of each target, then over those of each source."""
        other, gate, factor, source, target, mean, inverse = ctx.saved_tensors
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
