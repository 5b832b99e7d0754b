r"""Sparse softmax attention over the keys that a search selected, with gradients: the core of k-MIP attention.

.. math:: o_n = \sum_j a_{nj} v_{I(n,j)}, \qquad a_n = \mathrm{softmax}_j(\langle q_n, k_{I(n,j)} \rangle / \sqrt{D})

(k-MIP thesis, algorithm 1, without gathered keys and values.) Fused C loops on a CPU (``native/sparse_attention.c``),
Triton kernels on a GPU (``triton_sparse_attention.py``), plain torch on any device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from graphgps_kmip.ops import triton_sparse_attention
from graphgps_kmip.ops.native import dtype_flags, load, pointer, unavailable_reason
from graphgps_kmip.ops.operators import new_tensors, operator, refuse_second_derivative

THREAD_WORK = 100_000  # multiplications that take about as long as starting a thread (20 us)


def sparse_attention(q: Tensor, k: Tensor, v: Tensor, index: Tensor, score: Tensor, dropout: float = 0.0) -> Tensor:
    """Attend to selected keys: ``o_n = sum_j a_nj v_I(n,j)`` with ``a_n = softmax_j(<q_n, k_I(n,j)> / sqrt(D))``.

    Gradients flow to q, k and v; index is a constant. Forward and backward repeat bit for bit.
    Half-precision inputs are computed in float32.

    Args:
        q (Tensor): queries.
        k (Tensor): keys.
        v (Tensor): values.
        index (Tensor): row of k and v in each slot, -1 where a query has fewer keys.
        score (Tensor): ``<q_n, k_I(n,j)>`` as the search returned it, -inf in missing slots.
        dropout (float, optional): probability to drop a weight; the others are divided by 1 - dropout. (default: 0.0)

    Shapes: q (N, H, D), k (M, H, D), v (M, H, C), index and score (H, N, K); returns (N, H, C).

    Raises:
        IndexError: an index is not that of a key (checked on a CPU).
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    rows = _flat_rows(index.transpose(0, 1), k.size(0))  # (N * H, K), of the flat k and v
    score = score.to(wide).transpose(0, 1).flatten(0, 1)
    keep = torch.rand_like(score) >= dropout if dropout > 0 else None
    flat = [tensor.flatten(0, 1).to(wide) for tensor in (q, k, v)]  # (N * H, D), (M * H, D), (M * H, C)
    out, _ = _sparse_attention(*flat, rows, score, keep, dropout)
    return out.view(*q.shape[:-1], v.size(-1)).to(v.dtype)


def softmax_weight(score: Tensor, dim_kq: int) -> Tensor:
    """``softmax(score / sqrt(dim_kq))`` over the last dimension, 0 in missing slots (also where every slot is)."""
    # torch's CPU softmax over a leading dimension is five times faster than over rows of ten
    weight = torch.softmax(score.movedim(-1, 0) / math.sqrt(dim_kq), dim=0).movedim(0, -1)
    return weight.masked_fill(score == -torch.inf, 0.0)


def drop_weights(weight: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    """Apply dropout to weights, or to their gradient: ``weight * keep / (1 - dropout)``."""
    return weight if keep is None else weight * keep / (1.0 - dropout)


def _flat_rows(index: Tensor, num_keys: int) -> Tensor:
    """``index * H + head`` (N * H, K), int32 where that can count them; negative numbers remain negative."""
    num_heads = index.size(1)
    dtype = torch.int32 if num_keys * num_heads < 2**31 else torch.int64
    index = index.to(dtype)
    if num_heads > 1:
        index = index * num_heads + torch.arange(num_heads, dtype=dtype, device=index.device)[:, None]
    return index.flatten(0, 1)


def implementation(v: Tensor, rows: Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the fastest forward and backward for these values (S, C) and rows (R, K)."""
    if rows.dtype == torch.int32 and cpu_can_run(v, rows.numel()):
        return cpu_forward, cpu_backward
    if triton_sparse_attention.can_run(v):
        return triton_sparse_attention.sparse_attention_forward, triton_sparse_attention.sparse_attention_backward
    return torch_forward, torch_backward


# The operators: R queries attend, in each of K slots, to one of S keys and values.


def _attend(q: Tensor, _: Tensor, v: Tensor, rows: Tensor, score: Tensor, *dropout: Any) -> tuple[Tensor, Tensor]:
    """Shapes: q (R, D), k (S, D), v (S, C), rows and score (R, K); returns (R, C) and the weights (R, K)."""
    return implementation(v, rows)[0](v, rows, score, q.size(1), *dropout)


def _attend_back(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return implementation(v, rows)[1](grad_out, q, k, v, rows, *rest)


def _keep(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, rows, _, keep, ctx.dropout = inputs
    ctx.save_for_backward(q, k, v, rows, output[1], keep)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for that one


def _gradients(ctx: Any, grad_out: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad_out is None:
        return (None,) * 7
    refuse_second_derivative("sparse attention")
    return *_sparse_attention_backward(grad_out, *ctx.saved_tensors, ctx.dropout), *[None] * 4


_sparse_attention_backward = operator(
    "sparse_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor rows, Tensor weight, "
    "Tensor? keep, float dropout) -> (Tensor, Tensor, Tensor)",
    _attend_back,
    lambda grad_out, q, k, v, *_: tuple(new_tensors(q, k, v)),  # noqa: ARG005
)
_sparse_attention = operator(
    "sparse_attention(Tensor q, Tensor k, Tensor v, Tensor rows, Tensor score, Tensor? keep, float dropout) "
    "-> (Tensor, Tensor)",
    _attend,
    lambda q, k, v, rows, score, *_: (v.new_empty(rows.size(0), v.size(1)), score.new_empty(score.shape)),  # noqa: ARG005
    keep=_keep,
    gradients=_gradients,
)


# Plain torch, slot by slot, so that (R, K, C) values are never gathered; the fused forms have the same arguments.


def torch_forward(
    v: Tensor, rows: Tensor, score: Tensor, dim_kq: int, keep: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute ``a = softmax(score / sqrt(dim_kq))`` and ``o_r = sum_j a_rj keep_rj / (1 - dropout) v_rows(r,j)``.

    Rows and scores of empty slots are negative and -inf; ``keep`` is False where dropout drops a weight.

    Shapes: v (S, C), rows, score and keep (R, K); returns out (R, C) and weight a (R, K), 0 in missing slots.
    """
    weight = softmax_weight(score, dim_kq)
    return _weighted_sum(v, _present(rows), drop_weights(weight, keep, dropout)), weight


def torch_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weight: Tensor, keep: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``da = <g, v>``, ``ds = a (da - sum a da) / sqrt(D)``; dq = sum ds k; dk and dv by scatter-add, slot by slot.

    Shapes:
        grad_out (R, C), q (R, D), k (S, D), v (S, C), rows, weight (before dropout) and keep (R, K); returns tensors
        like q, k and v.
    """
    rows = _present(rows)
    used = drop_weights(weight, keep, dropout)
    grad_used = torch.stack([(grad_out * v.index_select(0, slot)).sum(-1) for slot in rows.unbind(1)], dim=1)
    grad_weight = drop_weights(grad_used, keep, dropout)
    grad_score = weight * (grad_weight - (weight * grad_weight).sum(1, keepdim=True)) / math.sqrt(q.size(1))
    grad_q = _weighted_sum(k, rows, grad_score)
    return grad_q, _scatter_sum(q, rows, grad_score, k.size(0)), _scatter_sum(grad_out, rows, used, v.size(0))


def _present(rows: Tensor) -> Tensor:
    """An empty slot repeats the first one (its weight is 0): nothing of another graph is touched."""
    return torch.where(rows < 0, rows[:, :1].clamp(min=0), rows).long()  # int64 is faster while it is in use


def _weighted_sum(values: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """``out_r = sum_j weight_rj values_rows(r,j)`` without the gathered (R, K, C): (S, C) -> (R, C)."""
    return embedding_bag(rows, values, per_sample_weights=weight, mode="sum")


def _scatter_sum(values: Tensor, rows: Tensor, weight: Tensor, num_rows: int) -> Tensor:
    """``out_s = sum_{r,j: rows(r,j) = s} weight_rj values_r``, slot by slot: (R, C) -> (S, C)."""
    out = values.new_zeros(num_rows, values.size(1))
    for slot, slot_weight in zip(rows.unbind(1), weight.unbind(1), strict=True):
        out.index_add_(0, slot, values * slot_weight[:, None])
    return out


# Fused C loops; the backward sums the gradients of a key over the queries that selected it.


def cpu_can_run(x: Tensor, num_slots: int) -> bool:
    """Whether the C kernel supports tensors like x with this many selected keys (32-bit indices)."""
    fits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and num_slots < 2**31
    return fits and unavailable_reason("sparse_attention", *dtype_flags(x.dtype)) is None


def cpu_forward(
    v: Tensor, rows: Tensor, score: Tensor, dim_kq: int, keep: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute `torch_forward` in C; rows are int32."""
    v, rows, score, keep = (tensor if tensor is None else tensor.contiguous() for tensor in (v, rows, score, keep))
    out, weight = v.new_empty(len(rows), v.size(1)), torch.empty_like(score)
    outside = load("sparse_attention", *dtype_flags(v.dtype)).sparse_attention_forward(
        *map(pointer, (v, rows, score, keep)),
        *map(ctypes.c_long, (len(rows), len(v))),
        *(rows.size(1), dim_kq, v.size(1)),
        ctypes.c_double(dropout),
        _num_threads(rows.numel() * v.size(1)),
        *map(pointer, (out, weight)),
    )
    if outside:
        raise IndexError(f"index names a key that is not there: the largest one allowed is {len(v) - 1} (flat)")
    return out, weight


def cpu_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: Tensor, weight: Tensor, keep: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute `torch_backward` in C; it repeats bit for bit on any number of threads."""
    inputs = (grad_out, q, k, v, rows, weight, keep)
    inputs = [tensor if tensor is None else tensor.contiguous() for tensor in inputs]
    grads = [torch.empty_like(tensor) for tensor in inputs[1:4]]
    failed = load("sparse_attention", *dtype_flags(v.dtype)).sparse_attention_backward(
        *map(pointer, inputs),
        *map(ctypes.c_long, (len(rows), len(k))),
        *(rows.size(1), q.size(1), v.size(1)),
        ctypes.c_double(dropout),
        _num_threads(4 * rows.numel() * v.size(1)),
        *map(pointer, grads),
    )
    if failed:
        raise MemoryError(f"not enough memory for the backward of sparse attention with {rows.numel()} slots")
    return grads


def _num_threads(work: int) -> int:
    return max(1, min(torch.get_num_threads(), work // THREAD_WORK))
