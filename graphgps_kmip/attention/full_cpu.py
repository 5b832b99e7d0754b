"""Full attention inside each graph in fused C loops: no padding, no weight kept, and dropout that costs little.

torch's fused kernel of the CPU knows neither dropout nor graphs of unlike sizes: for the one it falls back to the whole
score matrix, for the other graphs are padded to the largest one. This one meets each graph and head by itself.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.full_plain import plain_full_attention
from graphgps_kmip.common.gradients import differentiable_gradients
from graphgps_kmip.native import load, pointer, unavailable_reason
from graphgps_kmip.search.problem import NotFinite, overflow

PAIR_WORK = 50_000  # pairs of nodes and heads that take about as long as starting a thread (20 us)


def can_run(qkv: Tensor, context: GraphContext, num_heads: int, dropout: float) -> bool:
    """Whether the kernel takes these tensors and has work for all threads (a head of a graph is for one)."""
    fits = qkv.device.type == "cpu" and qkv.dtype in (torch.float32, torch.float64)
    divided = dropout > 0 or context.num_graphs * num_heads >= torch.get_num_threads()
    return fits and divided and unavailable_reason("full_attention", *_flags(qkv)) is None


def full_attention(qkv: Tensor, context: GraphContext, num_heads: int, dropout: float = 0.0) -> Tensor:
    r"""Compute ``softmax(Q K^T / sqrt(D)) V`` in each graph and head, weights dropped with a probability.

    Gradients flow to qkv, as often as wanted (a second derivative keeps the whole score matrix). Results repeat bit for
    bit, on any number of threads. What is dropped follows from a number drawn from torch's generator.

    Args:
        qkv: queries, keys and values of all heads, side by side.
        context: the graphs.
        num_heads: H.
        dropout: probability to drop a weight (in steps of 2^-32).

    Shapes:
        qkv (N, 3 H D) -> (N, H D).

    Raises:
        MemoryError: there is none for the keys and values of one head of the largest graph.
        NotFinite: qkv is finite, but inner products of queries and keys overflow.
        ValueError: the boundaries of the graphs are not those of these nodes.

    Cost: sum_g N_g^2 H D time; beside inputs and results, the largest graph's keys and values for each thread.
    """
    context.check_ptr()
    seed = int(torch.randint(2**62, ())) if dropout else 0
    return _FullAttention.apply(qkv, context.ptr, context.max_nodes, num_heads, dropout, seed)


class _FullAttention(Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, ptr: Tensor, most: int, num_heads: int, dropout: float, seed: int) -> Tensor:
        """Keep the output and one number for each query and head."""
        qkv, ptr = qkv.contiguous(), ptr.long().contiguous()
        out, lse = qkv.new_empty(len(qkv), qkv.size(1) // 3), qkv.new_empty(len(qkv), num_heads)
        ctx.sizes = most, num_heads, dropout, seed
        _call(qkv, None, ptr, ctx.sizes, out, lse, None)
        # a sum carries a NaN along and is the cheapest look
        if not math.isfinite(lse.sum().item()) and not lse.isfinite().all() and qkv.isfinite().all():
            raise _overflow(qkv)
        ctx.save_for_backward(qkv, ptr, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the weights again, tile by tile."""
        qkv, ptr, out, lse = ctx.saved_tensors
        if torch.is_grad_enabled():
            most, *options = ctx.sizes
            plain = partial(plain_full_attention, ptr=ptr, most=most, options=tuple(options))
            return *differentiable_gradients(plain, (qkv,), (grad_out,)), *[None] * 5
        grad = torch.empty_like(qkv)
        _call(qkv, grad_out.contiguous(), ptr, ctx.sizes, out, lse, grad)
        return grad, None, None, None, None, None


def _call(
    qkv: Tensor,
    grad_out: Tensor | None,
    ptr: Tensor,
    sizes: tuple[int, int, float, int],
    out: Tensor,
    lse: Tensor,
    grad: Tensor | None,
) -> None:
    most, num_heads, dropout, seed = sizes
    pairs = len(qkv) * most * num_heads
    failed = load("full_attention", *_flags(qkv)).full_attention(
        *map(pointer, (qkv, grad_out, ptr)),
        *map(ctypes.c_long, (len(ptr) - 1, most)),
        *(num_heads, out.size(1) // num_heads),
        ctypes.c_double(dropout),
        ctypes.c_uint64(seed),
        max(1, min(torch.get_num_threads(), pairs // PAIR_WORK)),
        *map(pointer, (out, lse, grad)),
    )
    if failed:
        raise MemoryError(f"full attention needs more memory for a graph of {most} nodes than there is")


def _overflow(qkv: Tensor) -> NotFinite:
    q, k, _ = (float(part.abs().max()) for part in qkv.chunk(3, 1))
    return overflow(q, k, qkv.dtype)


def _flags(x: Tensor) -> tuple[str, ...]:
    return ("-DDOUBLE",) if x.dtype == torch.float64 else ()
