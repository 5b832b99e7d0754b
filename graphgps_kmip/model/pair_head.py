"""GraphGPS's head ``infer_links``: which pairs of nodes of a graph are edges of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PairHead(nn.Module):
    r"""Two logits, no edge and edge, for every ordered pair of nodes of each graph.

    .. math:: \mathrm{logits}_{ij} = w \, x_i^T x_j + b, \quad w, b \in R^2

    The pairs are those of one graph after the other, (0, 0), (0, 1), ..., (1, 0), ..., loops included, and their
    labels are 1 where ``batch.edge_index`` has the pair: what the data says of its graphs or nodes is not read. Time
    and memory are those of all pairs, so not for one large graph.

    Shapes: batch.x (N, C) -> (P, 2), labels (P,); P the sum of the squares of the graphs' sizes.
    """

    level = "link"

    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Linear(1, 2)

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return logits and labels of all pairs."""
        x, ptr = batch.x, batch.get("ptr")
        ptr = torch.tensor([0, len(x)], device=x.device) if ptr is None else ptr
        first, second = all_pairs(ptr)
        score = (x[first] * x[second]).sum(-1, keepdim=True)  # (P, 1)
        source, target = batch.edge_index
        return self.predictor(score), torch.isin(first * len(x) + second, source * len(x) + target).long()


def all_pairs(ptr: Tensor) -> tuple[Tensor, Tensor]:
    """Return both nodes of all ordered pairs inside graphs, ptr (B + 1,) the first node of each: (P,) and (P,)."""
    size = torch.repeat_interleave(ptr.diff(), ptr.diff())  # (N,), of the graph that a node is in
    start = torch.repeat_interleave(ptr[:-1], ptr.diff())
    first = torch.repeat_interleave(size)  # (P,)
    before = size.cumsum(0) - size  # pairs ahead of those of a node
    return first, torch.arange(len(first), device=ptr.device) + (start - before)[first]
