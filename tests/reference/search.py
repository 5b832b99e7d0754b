"""k-maximum-inner-product search by brute force, in float64, graph after graph and head after head."""

from __future__ import annotations

import torch
from torch import Tensor


def search(q: Tensor, k: Tensor, ptr_q: list[int], ptr_k: list[int], num_keys: int) -> Tensor:
    """Return the scores (H, N, K), descending, -inf where a graph has too few keys; q (H, N, D), k (H, M, D)."""
    score = torch.full((*q.shape[:2], num_keys), -torch.inf, dtype=torch.float64)
    for head in range(q.size(0)):
        for graph in range(len(ptr_q) - 1):
            keys = k[head, ptr_k[graph] : ptr_k[graph + 1]].double()
            for row in range(ptr_q[graph], ptr_q[graph + 1]):
                products = (keys * q[head, row].double()).sum(1).sort(descending=True).values[:num_keys]
                score[head, row, : len(products)] = products
    return score
