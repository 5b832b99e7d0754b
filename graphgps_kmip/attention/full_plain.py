"""Full attention inside each graph in torch operations: what the kernel of full_cpu.py computes, dropout included.

Holds the scores of all pairs of nodes, and is differentiable as often as wanted.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded

_LOW = np.uint64(0xFFFFFFFF)


def plain_full_attention(qkv: Tensor, ptr: Tensor, most: int, options: tuple[int, float, int]) -> Tensor:
    """Compute ``softmax(Q K^T / sqrt(D)) V`` in each graph and head, with the dropout of the kernel.

    Args:
        qkv: queries, keys and values of all heads, side by side.
        ptr: first node of each graph, and N at the end.
        most: nodes of the largest graph.
        options: heads H, probability to drop a weight, seed of what is dropped.

    Shapes:
        qkv (N, 3 H D), ptr (B+1,); returns (N, H D).
    """
    num_heads, dropout, seed = options
    if not len(qkv):
        return qkv[:, : qkv.size(1) // 3]
    batch = torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff())
    context = GraphContext(batch, ptr)
    padded, mask = to_padded(qkv, context)
    q, k, v = padded.unflatten(2, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, H, Nmax, D)
    score = (q @ k.mT) / math.sqrt(q.size(-1))
    weight = score.masked_fill(~mask[:, None, None], torch.finfo(score.dtype).min).softmax(-1)
    if dropout:
        weight = weight * drop_factors(len(ptr) - 1, num_heads, most, dropout, seed).to(weight)
    return from_padded((weight @ v).transpose(1, 2).flatten(2), context)


def drop_factors(num_graphs: int, num_heads: int, most: int, dropout: float, seed: int) -> Tensor:
    """Return what the kernel multiplies each weight by, 0 or 1 / (1 - dropout): the hash of full_attention.c.

    Shapes:
        returns (B, H, Nmax, Nmax) float64.
    """
    unit = np.arange(num_graphs * num_heads, dtype=np.uint64)[:, None]
    place = np.arange(most, dtype=np.uint64)
    row = _mixed(_mixed(np.uint64(seed) + unit) ^ place)[..., None]  # (units, Nmax, 1)
    x = ((row & _LOW) + place) & _LOW
    x = ((x ^ (x >> np.uint64(16))) * np.uint64(0x7FEB352D) & _LOW) ^ (row >> np.uint64(32))
    x = (x ^ (x >> np.uint64(15))) * np.uint64(0x846CA68B) & _LOW
    kept = (x ^ (x >> np.uint64(16))) >= np.uint64(int(dropout * 2**32))
    return torch.from_numpy(kept / (1 - dropout)).view(num_graphs, num_heads, most, most)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """SplitMix64: products wrap at 2^64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
