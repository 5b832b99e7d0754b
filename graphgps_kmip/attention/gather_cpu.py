"""Softmax attention over selected keys in fused C loops: the same mathematics as gather_torch.py.

The forward reads the values of a query where they lie, the backward sums the gradients of a key over the queries that
selected it (a counting sort of the index); beside inputs and results only (R, K) numbers are in memory.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from graphgps_kmip.native import load, pointer, unavailable_reason

# Multiplications that take about as long as starting a thread (20 us).
THREAD_WORK = 100_000


def can_run(x: Tensor, num_slots: int) -> bool:
    """Whether the kernel takes tensors like x with this many selected keys (32 bits count them)."""
    fits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and num_slots < 2**31
    return fits and unavailable_reason("sparse_attention", *_flags(x)) is None


def sparse_attention_forward(
    v: Tensor, rows: Tensor, score: Tensor, dim_kq: int, keep: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Compute ``a = softmax(score / sqrt(dim_kq))`` and ``o_r = sum_j a_rj keep_rj / (1 - dropout) v_rows(r,j)``.

    Shapes:
        v (S, C), rows (R, K) int32 (-1: none), score and keep (R, K); returns out (R, C) and weight a (R, K).

    Raises:
        IndexError: a row that v does not have.
    """
    num_rows, num_slots = rows.shape
    v, rows, score = v.contiguous(), rows.contiguous(), score.contiguous()
    keep = None if keep is None else keep.contiguous()
    out, weight = v.new_empty(num_rows, v.size(1)), torch.empty_like(score)
    outside = load("sparse_attention", *_flags(v)).sparse_attention_forward(
        *map(pointer, (v, rows, score, keep)),
        *map(ctypes.c_long, (num_rows, len(v))),
        *(num_slots, dim_kq, v.size(1)),
        ctypes.c_double(dropout),
        _num_threads(rows.numel() * v.size(1)),
        *map(pointer, (out, weight)),
    )
    if outside:
        raise IndexError(f"an index names a key that is not there: the largest one allowed is {len(v) - 1} (flat)")
    return out, weight


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
    """Gradients of q, k and v: ``da = <g, v>``, ``ds = a (da - sum a da) / sqrt(D)``, each product dropped as forward.

    They repeat bit for bit, on any number of threads.

    Shapes:
        grad_out (R, C), q (R, D), k (S, D), v (S, C), rows, weight and keep (R, K); returns tensors like q, k and v.
    """
    grad_out, q, k, v, rows, weight = (tensor.contiguous() for tensor in (grad_out, q, k, v, rows, weight))
    keep = None if keep is None else keep.contiguous()
    grads = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    failed = load("sparse_attention", *_flags(v)).sparse_attention_backward(
        *map(pointer, (grad_out, q, k, v, rows, weight, keep)),
        *map(ctypes.c_long, (len(rows), len(k))),
        *(rows.size(1), q.size(1), v.size(1)),
        ctypes.c_double(dropout),
        _num_threads(4 * rows.numel() * v.size(1)),
        *map(pointer, grads),
    )
    if failed:
        raise MemoryError(f"the backward of sparse attention needs more memory for {rows.numel()} slots than there is")
    return grads


def _num_threads(work: int) -> int:
    return max(1, min(torch.get_num_threads(), work // THREAD_WORK))


def _flags(x: Tensor) -> tuple[str, ...]:
    return ("-DDOUBLE",) if x.dtype == torch.float64 else ()
