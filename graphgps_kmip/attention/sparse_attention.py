"""Softmax attention over the keys that a search selected, with gradients: fused on CPU and GPU, plain torch elsewhere.

Differs from the plain form (thesis, algorithm 1) only in memory: beside q, k and v, index and weights are all that is
kept for the backward.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from graphgps_kmip.attention import gather_cpu, gather_torch, triton_sparse_attention
from graphgps_kmip.attention.gather_torch import plain_sparse_attention, softmax_weight
from graphgps_kmip.common.gradients import differentiable_gradients

__all__ = ["softmax_weight", "sparse_attention"]


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, index: Tensor, score: Tensor, dropout: float = 0.0) -> Tensor:
    """Attend to selected keys: ``o_n = sum_j a_nj v_I(n,j)`` with ``a_n = softmax_j(<q_n, k_I(n,j)> / sqrt(D))``.

    Gradients flow to q, k and v, as often as wanted (a second derivative costs the memory of the plain form); index is
    a constant. Forward and backward repeat bit for bit. Halves are computed in float32.

    Args:
        q: queries.
        k: keys.
        v: values.
        index: row of k and v in each slot, -1 where a query has fewer keys.
        score: ``<q_n, k_I(n,j)>`` as the search returned it, -inf in missing slots.
        dropout: probability to drop a weight (the others are divided by 1 - dropout).

    Shapes:
        q (N, H, D), k (M, H, D), v (M, H, C), index and score (H, N, K); returns (N, H, C).
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    rows = _rows(index.transpose(0, 1), k.size(0))  # (N * H, K), of the flat k and v
    score = score.to(wide).transpose(0, 1).flatten(0, 1)
    keep = torch.rand_like(score) >= dropout if dropout > 0 else None
    flat = [tensor.flatten(0, 1).to(wide) for tensor in (q, k, v)]  # (N * H, D), (M * H, D), (M * H, C)
    out = _SparseAttention.apply(*flat, rows, score, keep, dropout)
    return out.view(*q.shape[:-1], v.size(-1)).to(v.dtype)


def _rows(index: Tensor, num_keys: int) -> Tensor:
    """``index * H + head`` (N * H, K), int32 where that can count them; negative numbers remain negative."""
    num_heads = index.size(1)
    dtype = torch.int32 if num_keys * num_heads < 2**31 else torch.int64
    index = index.to(dtype)
    if num_heads > 1:
        index = index * num_heads + torch.arange(num_heads, dtype=dtype, device=index.device)[:, None]
    return index.flatten(0, 1)


def _implementation(v: Tensor, rows: Tensor) -> ModuleType:
    if rows.dtype == torch.int32 and gather_cpu.can_run(v, rows.numel()):
        return gather_cpu
    if v.device.type == "cuda" and triton_sparse_attention.can_run(v):
        return triton_sparse_attention
    return gather_torch


class _SparseAttention(Function):
    """R queries meet, in each of K slots, one of S keys and values."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, score: Tensor, keep: Tensor | None, dropout: float
    ) -> Tensor:
        """Shapes: q (R, D), k (S, D), v (S, C), rows, score and keep (R, K); returns (R, C)."""
        ctx.implementation = _implementation(v, rows)
        ctx.dropout = dropout
        out, weight = ctx.implementation.sparse_attention_forward(v, rows, score, q.size(1), keep, dropout)
        ctx.save_for_backward(q, k, v, rows, weight, keep)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of q, k and v."""
        if torch.is_grad_enabled():
            q, k, v, *constants = ctx.saved_tensors
            plain = partial(plain_sparse_attention, constants=(*constants, ctx.dropout))
            return *differentiable_gradients(plain, (q, k, v), (grad_out,)), *[None] * 4
        return *ctx.implementation.sparse_attention_backward(grad_out, *ctx.saved_tensors, ctx.dropout), *[None] * 4
