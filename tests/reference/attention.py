"""Attention by its formula, graph after graph, differentiable by plain autograd: full, and restricted to k keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def full_attention(q: Tensor, k: Tensor, v: Tensor, ptr: list[int]) -> Tensor:
    """``softmax(Q K^T / sqrt(D)) V`` in each graph and head; q, k (N, H, D), v (N, H, C) -> (N, H, C)."""
    out = []
    for start, end in zip(ptr, ptr[1:], strict=False):
        score = torch.einsum("nhd,mhd->hnm", q[start:end], k[start:end])
        weight = torch.softmax(score / math.sqrt(q.size(-1)), dim=-1)
        out.append(torch.einsum("hnm,mhc->nhc", weight, v[start:end]))
    return torch.cat(out)


def kmip_attention(q: Tensor, k: Tensor, v: Tensor, ptr: list[int], num_keys: int) -> Tensor:
    """The same over the ``num_keys`` keys of largest inner product, by a plain gather (thesis, algorithm 1)."""
    out = []
    for start, end in zip(ptr, ptr[1:], strict=False):
        score = torch.einsum("nhd,mhd->hnm", q[start:end], k[start:end])
        kept, index = score.topk(min(num_keys, end - start), dim=-1)
        weight = torch.softmax(kept / math.sqrt(q.size(-1)), dim=-1)  # (H, n, K)
        heads = [values[at] for values, at in zip(v[start:end].unbind(1), index, strict=True)]  # H times (n, K, C)
        out.append(torch.einsum("hnk,hnkc->nhc", weight, torch.stack(heads)))
    return torch.cat(out)
