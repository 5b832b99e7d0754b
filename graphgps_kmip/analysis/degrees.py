"""Out-degrees in the attention graphs: how many queries select a node as a key (thesis 6.8)."""

from __future__ import annotations

import torch
from torch import Tensor

from graphgps_kmip.attention.attention_graph import AttentionGraph


def degree_counts(graphs: list[AttentionGraph]) -> Tensor:
    """Return how many nodes, over all graphs and heads of one layer, have out-degree 0, 1, 2, ...

    Shapes:
        index of a graph (H, N, K); returns (largest out-degree + 1,) int64.
    """
    return torch.cat([graph.out_degree().flatten() for graph in graphs]).bincount()
