"""Differentiable collectives: all-reduce sum and all-to-all exchange; every process makes each call, and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


def total(value: Tensor) -> Tensor:
    """Return the sum over all processes, on each of them."""
    return _Total.apply(value)


def exchange(rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
    """Send the first ``send[0]`` rows to rank 0, the next ``send[1]`` to rank 1, ...; return the received ones.

    Shapes: rows (sum of send, ...) -> (sum of receive, ...), in order of rank.
    """
    return _Exchange.apply(rows, list(send), list(receive))


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        value = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ARG004
        return _Total.apply(grad)


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int]) -> Tensor:
        ctx.sizes = send, receive
        out = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        send, receive = ctx.sizes
        return _Exchange.apply(grad, receive, send), None, None
