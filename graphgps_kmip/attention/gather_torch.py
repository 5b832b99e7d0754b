"""Softmax attention over selected keys in plain torch, for any device: never gathers (R, K, C) values.

Differs from the plain form (thesis, algorithm 1) only in memory: the forward sums bags of rows, the backward walks the
K slots one after the other.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


def softmax_weight(score: Tensor, dim_kq: int) -> Tensor:
    """``softmax(score / sqrt(dim_kq))`` over the last dimension, 0 in missing slots (also where every slot is)."""
    # torch's CPU softmax over a leading dimension is five times faster than over rows of ten
    weight = torch.softmax(score.movedim(-1, 0) / math.sqrt(dim_kq), dim=0).movedim(0, -1)
    return weight.masked_fill(score == -torch.inf, 0.0)


def sparse_attention_forward(
    v: Tensor, rows: Tensor, score: Tensor, dim_kq: int, keep: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute ``a = softmax(score / sqrt(dim_kq))`` and ``o_r = sum_j a_rj keep_rj / (1 - dropout) v_rows(r,j)``.

    Shapes:
        v (S, C), rows (R, K) (negative: none), score and keep (R, K); returns out (R, C) and weight a (R, K).
    """
    weight = softmax_weight(score, dim_kq)
    return _weighted_sum(v, _present(rows), dropped(weight, keep, dropout)), weight


def sparse_attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    weight: Tensor,
    keep: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """``da = <g, v>``, ``ds = a (da - sum a da) / sqrt(D)``; dq = sum ds k; dk and dv by scatter-add, slot by slot.

    Shapes:
        grad_out (R, C), q (R, D), k (S, D), v (S, C), rows, weight and keep (R, K); returns tensors like q, k and v.
    """
    rows = _present(rows)
    used = dropped(weight, keep, dropout)
    grad_used = torch.stack([(grad_out * v.index_select(0, slot)).sum(-1) for slot in rows.unbind(1)], dim=1)
    grad_weight = dropped(grad_used, keep, dropout)
    grad_score = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True)) / math.sqrt(q.size(1))
    grad_q = _weighted_sum(k, rows, grad_score)
    return grad_q, _scatter_sum(q, rows, grad_score, k.size(0)), _scatter_sum(grad_out, rows, used, v.size(0))


def plain_sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, constants: tuple[Tensor, Tensor, Tensor | None, float]
) -> Tensor:
    """The same output in operations that are differentiable as often as wanted: gathers (R, K, D) and (R, K, C).

    Args:
        q: queries.
        k: keys.
        v: values.
        constants: rows, the weights a of the forward, what dropout keeps, and its probability.

    Shapes:
        q (R, D), k (S, D), v (S, C), rows, a and keep (R, K); returns (R, C).
    """
    rows, constant, keep, dropout = constants
    if not rows.numel() or not k.size(0):
        return v.new_zeros(len(rows), v.size(1))
    at, there = rows.clamp(min=0).long(), (rows >= 0) & (constant != 0)
    logit = (q[:, None] * k[at]).sum(-1) / math.sqrt(q.size(1))  # (R, K)
    # softmax(log a) is a: so the weights are those of the forward, whatever score it was given
    logit = logit + torch.where(there, constant.log() - logit, 0.0).detach()
    weight = logit.masked_fill(~there, torch.finfo(logit.dtype).min).softmax(-1).masked_fill(~there, 0.0)
    return (dropped(weight, keep, dropout)[..., None] * v[at]).sum(1)


def _present(rows: Tensor) -> Tensor:
    """An empty slot repeats the first one (its weight is 0): nothing of another graph is touched."""
    return torch.where(rows < 0, rows[:, :1].clamp(min=0), rows).long()  # int64 is faster while it is in use


def dropped(weight: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    """Apply dropout to weights, or to their gradient: ``weight * keep / (1 - dropout)``."""
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
