"""Degrees of nodes, and the local degree profile: statistics of the degrees around a node (Cai and Wang 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

NUM_STATISTICS = 5  # of a profile


def out_degrees(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the number of edges that leave each node.

    Shapes: edge_index (2, E) -> (N,), int64.
    """
    return torch.bincount(edge_index[0], minlength=num_nodes)


def local_degree_profile(edge_index: Tensor, num_nodes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the out-degree of each node, and minimum, maximum, mean and standard deviation of its successors'.

    The standard deviation divides by the number of successors. A node without successors has 0 everywhere.

    Args:
        edge_index: edges of one graph or of a batch; a repeated edge counts as often as it stands there.
        num_nodes: N.
        dtype: of the result; float64 inside.

    Shapes: edge_index (2, E) -> (N, 5).
    """
    row, column = edge_index
    degree = out_degrees(edge_index, num_nodes).double()
    around = degree[column]  # (E,)
    empty = degree.new_zeros(num_nodes)

    def mean(values: Tensor) -> Tensor:
        return empty.index_add(0, row, values) / degree.clamp(min=1)

    average = mean(around)
    least, most = (empty.scatter_reduce(0, row, around, kind, include_self=False) for kind in ("amin", "amax"))
    deviation = mean((around - average[row]).square()).sqrt()
    return torch.stack([degree, least, most, average, deviation], dim=1).to(dtype)
