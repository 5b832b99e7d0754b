"""Softmax attention over the keys that a search selected, with a backward that never gathers (N, K, D) values.

Differs from the plain form (thesis, algorithm 1) only in memory: beside q, k and v, index and weights are all that is
kept, and the backward walks the K slots one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, index: Tensor, score: Tensor, dropout: float = 0.0) -> Tensor:
    """Attend to selected keys: ``o_n = sum_j a_nj v_I(n,j)`` with ``a_n = softmax_j(<q_n, k_I(n,j)> / sqrt(D))``.

    Gradients flow to q, k and v; index is a constant. On a CPU forward and backward repeat bit for bit. Halves are
    computed in float32.

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
    num_heads = q.size(1)
    # a missing slot repeats the first one, with weight 0: nothing of another graph is touched
    index = torch.where(index < 0, index[..., :1].clamp(min=0), index)
    rows = index * num_heads + torch.arange(num_heads, device=index.device)[:, None, None]  # of the flat k and v
    wide = torch.promote_types(v.dtype, torch.float32)
    weight = softmax_weight(score.to(wide), q.size(-1))
    rows, weight = (tensor.transpose(0, 1).flatten(0, 1) for tensor in (rows, weight))  # (N * H, K)
    keep = torch.rand_like(weight) >= dropout if dropout > 0 else None
    flat = [tensor.flatten(0, 1).to(wide) for tensor in (q, k, v)]  # (N * H, D), (M * H, D), (M * H, C)
    out = _SparseAttention.apply(*flat, rows, weight, keep, dropout)
    return out.view(*q.shape[:-1], v.size(-1)).to(v.dtype)


def softmax_weight(score: Tensor, dim_kq: int) -> Tensor:
    """``softmax(score / sqrt(dim_kq))`` over the last dimension, 0 in missing slots (also where every slot is)."""
    # torch's CPU softmax over a leading dimension is five times faster than over rows of ten
    weight = torch.softmax(score.movedim(-1, 0) / math.sqrt(dim_kq), dim=0).movedim(0, -1)
    return weight.masked_fill(score == -torch.inf, 0.0)


class _SparseAttention(Function):
    """R queries meet, in each of K slots, one of S keys and values."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weight: Tensor, keep: Tensor | None, dropout: float
    ) -> Tensor:
        """Shapes: q (R, D), k (S, D), v (S, C), rows, weight and keep (R, K); returns (R, C)."""
        # half the memory until backward; int64 is faster while it is in use
        kept_rows = rows.int() if k.size(0) < 2**31 else rows
        ctx.save_for_backward(q, k, v, kept_rows, weight, keep)
        ctx.dropout = dropout
        return _weighted_sum(v, rows, _dropped(weight, keep, dropout))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """``da = <g, v>``, ``ds = a (da - sum a da) / sqrt(D)``; dq = sum ds k; dk and dv by scatter-add."""
        q, k, v, rows, weight, keep = ctx.saved_tensors
        rows = rows.long()
        used = _dropped(weight, keep, ctx.dropout)
        grad_used = torch.stack([(grad_out * v.index_select(0, slot)).sum(-1) for slot in rows.unbind(1)], dim=1)
        grad_weight = _dropped(grad_used, keep, ctx.dropout)
        grad_score = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True)) / math.sqrt(q.size(1))
        grad_q = _weighted_sum(k, rows, grad_score)
        grad_k = _scatter_sum(q, rows, grad_score, k.size(0))
        grad_v = _scatter_sum(grad_out, rows, used, v.size(0))
        return grad_q, grad_k, grad_v, None, None, None, None


def _dropped(weight: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    return weight if keep is None else weight * keep / (1.0 - dropout)


def _weighted_sum(values: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """``out_r = sum_j weight_rj values_rows(r,j)`` without the gathered (R, K, C): (S, C) -> (R, C)."""
    return embedding_bag(rows, values, per_sample_weights=weight, mode="sum")


def _scatter_sum(values: Tensor, rows: Tensor, weight: Tensor, num_rows: int) -> Tensor:
    """``out_s = sum_{r,j: rows(r,j) = s} weight_rj values_r``, slot by slot: (R, C) -> (S, C)."""
    out = values.new_zeros(num_rows, values.size(1))
    for slot, slot_weight in zip(rows.unbind(1), weight.unbind(1), strict=True):
        out.index_add_(0, slot, values * slot_weight[:, None])
    return out
