"""Reference forms of operators by their formulas, differentiable by autograd; memory grows with pairs of nodes."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor


def best_keys(q: Tensor, k: Tensor, ptr_q: list[int], ptr_k: list[int], num_keys: int) -> tuple[Tensor, Tensor]:
    """Return the K keys of largest inner product with each query in its graph, in descending order, in float64.

    Shapes: q (H, N, D), k (H, M, D) -> index (-1 in empty slots) and score (-inf there), (H, N, K).
    """
    score = torch.full((*q.shape[:2], num_keys), -math.inf, dtype=torch.float64, device=q.device)
    index = torch.full_like(score, -1, dtype=torch.long)
    for (start_q, end_q), (start_k, end_k) in zip(pairwise(ptr_q), pairwise(ptr_k), strict=True):
        products = q[:, start_q:end_q].double() @ k[:, start_k:end_k].double().mT
        slots = min(num_keys, end_k - start_k)
        score[:, start_q:end_q, :slots], best = products.topk(slots)
        index[:, start_q:end_q, :slots] = best + start_k
    return index, score


def attention_to_keys(q: Tensor, k: Tensor, v: Tensor, index: Tensor) -> Tensor:
    """Return the softmax attention of each query to some keys, by a plain gather (k-MIP thesis, algorithm 1).

    Shapes: q, k (N, H, D), v (N, H, C), index (H, N, K) with -1 in empty slots -> (N, H, C).
    """
    rows, heads = index.clamp(min=0), torch.arange(len(index), device=index.device)[:, None, None]
    logit = torch.einsum("nhd,hnkd->hnk", q, k[rows, heads]) / math.sqrt(q.size(-1))
    weight = logit.masked_fill(index < 0, -math.inf).softmax(-1)
    return torch.einsum("hnk,hnkc->nhc", weight, v[rows, heads])


def kmip_attention(q: Tensor, k: Tensor, v: Tensor, ptr: list[int], num_keys: int) -> Tensor:
    """Return `attention_to_keys` to the `best_keys`; q, k (N, H, D), v (N, H, C) -> (N, H, C)."""
    index, _ = best_keys(q.transpose(0, 1), k.transpose(0, 1), ptr, ptr, num_keys)
    return attention_to_keys(q, k, v, index)


def full_attention(q: Tensor, k: Tensor, v: Tensor, ptr: list[int]) -> Tensor:
    """Return ``softmax(Q K^T / sqrt(D)) V`` in each graph and head; q, k (N, H, D), v (N, H, C) -> (N, H, C)."""
    out = []
    for start, end in pairwise(ptr):
        score = torch.einsum("nhd,mhd->hnm", q[start:end], k[start:end])
        weight = torch.softmax(score / math.sqrt(q.size(-1)), dim=-1)
        out.append(torch.einsum("hnm,mhc->nhc", weight, v[start:end]))
    return torch.cat(out)


def clamped_attention(q: Tensor, k: Tensor, v: Tensor, e: Tensor, edges: Tensor) -> Tensor:
    """Return Exphormer's attention along edges (source, target, kind), whose scores are clamped to +-5.

    Shapes: q, k (N, H, D), v (N, H, C), e (R, H, D), edges (3, E) -> (N, H, C).
    """
    source, target, kind = edges
    weight = ((q[target] * k[source] * e[kind]).sum(-1) / math.sqrt(q.size(-1))).clamp(-5, 5).exp()[..., None]
    total = weight.new_zeros(*q.shape[:2], 1).index_add(0, target, weight)
    return torch.zeros_like(v).index_add(0, target, weight * v[source]) / (total + 1e-6)


def gated_mean(
    x_target: Tensor, x_source: Tensor, edge: Tensor, factor: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """Return GatedGCN's gated means, and below them the gates; arguments and shapes as of ``ops.gated_mean``."""
    (a, d), (b, h) = x_target.chunk(2, 1), x_source.chunk(2, 1)
    gate = edge + d[target] + h[source]
    weight = factor * gate.sigmoid()
    total, normaliser = (torch.zeros_like(a).index_add(0, target, values) for values in (weight * b[source], weight))
    return torch.cat([a + total / (normaliser + 1e-6), gate])
