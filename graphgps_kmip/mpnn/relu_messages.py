r"""Messages of GINE (Hu et al. 2020), summed at their targets in one pass over the edges on a CPU.

.. math:: y_i = x_i + \sum_{e: t(e) = i} \mathrm{ReLU}(x_{s(e)} + c_e)

``native/relu_messages.c`` gathers, adds, cuts and sums a row of an edge at a time, where tensor operations write three
tensors of size edges times channels and keep one more; the backward pass keeps x and c alone.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.common.operators import are_plain
from graphgps_kmip.native import dtype_flags, load, pointer, unavailable_reason

KERNEL = "relu_messages"
EDGE_WORK = 50_000  # channels of edges that take about as long as starting a thread (20 us)


def relu_messages(x: Tensor, x_source: Tensor | None, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Add the messages of the edges to the features of their targets.

    Gradients flow to x, x_source and edge, as often as wanted (a second derivative keeps tensors of size edges times
    channels). Results repeat bit for bit, on any number of threads.

    Args:
        x (Tensor): features of the targets.
        x_source (Tensor or None): features of the sources; None: they are the targets.
        edge (Tensor): c.
        source (Tensor): s, row of the sources.
        target (Tensor): t, row of x.

    Shapes:
        x (N, C), x_source (M, C), edge (E, C), source and target (E,) -> (N, C).

    Raises:
        IndexError: the source or target of an edge is not a node.
    """
    return _ReluMessages.apply(x, x_source, edge, source, target)


def can_run(x: Tensor, x_source: Tensor, edge: Tensor, source: Tensor) -> bool:
    """Whether the kernel supports these tensors: on a CPU, of one dtype that it has, and of shapes that fit."""
    given = (x, x_source, edge)
    if not are_plain(given) or any(one.device.type != "cpu" or one.dtype != edge.dtype for one in given):
        return False
    fits = edge.shape == (len(source), x.size(1)) and x_source.size(1) == x.size(1)
    fits = fits and edge.dtype in (torch.float32, torch.float64)
    return fits and unavailable_reason(KERNEL, *dtype_flags(edge.dtype)) is None


class _ReluMessages(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, x_source: Tensor | None, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Keep the inputs."""
        ctx.save_for_backward(x, x_source, edge, source, target)
        out = x.clone(memory_format=torch.contiguous_format)
        given = _contiguous(x if x_source is None else x_source, edge, source, target)
        sizes = *map(ctypes.c_long, (len(edge), len(given[0]), len(x))), x.size(1), _threads(edge)
        if _library(edge).messages_forward(*map(pointer, given), *sizes, pointer(out)):
            raise IndexError("edge_index names nodes that do not exist")
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Walk the edges once more: an edge whose message was cut passes nothing on."""
        x, x_source, edge, source, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(_plain, source=source, target=target)
            return *differentiable_gradients(plain, (x, x_source, edge), (grad,)), None, None
        joint, grad = x_source is None, grad.contiguous()
        rows, edge, source, target = _contiguous(x if joint else x_source, edge, source, target)
        grad_rows, grad_edge = grad.clone() if joint else torch.zeros_like(rows), torch.empty_like(edge)
        _library(edge).messages_backward(
            *map(pointer, (rows, edge, grad, source, target)),
            *(ctypes.c_long(len(edge)), edge.size(1), _threads(edge)),
            *map(pointer, (grad_rows, grad_edge)),
        )
        return *((grad_rows, None) if joint else (grad, grad_rows)), grad_edge, None, None


def _plain(x: Tensor, x_source: Tensor | None, edge: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """The same in operations that are differentiable as often as wanted."""
    rows = x if x_source is None else x_source
    return x.index_add(0, target, torch.relu(rows.index_select(0, source) + edge))


def _contiguous(rows: Tensor, edge: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return rows.contiguous(), edge.contiguous(), source.long().contiguous(), target.long().contiguous()


def _threads(edge: Tensor) -> int:
    return max(1, min(torch.get_num_threads(), edge.numel() // EDGE_WORK))


def _library(edge: Tensor) -> ctypes.CDLL:
    return load(KERNEL, *dtype_flags(edge.dtype))
