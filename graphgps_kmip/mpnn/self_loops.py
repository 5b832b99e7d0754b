"""Self loops of message passing: those of the data are dropped and every node gets one, without waiting for a GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops

from graphgps_kmip.common.host_copies import host_copy, remembered


def with_own_loops(edge_index: Tensor, edge_attr: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Replace the self loops of a graph by one for each node, behind all other edges.

    What ``GATConv`` and ``GCNConv`` of torch_geometric do with ``add_self_loops=True``. There the host waits for the
    device in each layer, to learn how many loops there were; here it counts them in its own copy of the edges. Layers
    that are given the same tensor of edges share the result.

    Args:
        edge_index (Tensor): edges (source, target).
        edge_attr (Tensor or None): edge features; a new loop has the mean of those of the other edges into its node.
        num_nodes (int): N.

    Shapes:
        edge_index (2, E), edge_attr (E, C) -> (2, E' + N), (E' + N, C), E' edges that are no loops.
    """
    rows, looped = remembered(edge_index, ("own loops", num_nodes), partial(_looped, edge_index, num_nodes))
    if edge_attr is None:
        return looped, None
    if rows is not None:
        edge_index, edge_attr = edge_index[:, rows], edge_attr[rows]
    return looped, add_self_loops(edge_index, edge_attr, fill_value="mean", num_nodes=num_nodes)[1]


def _looped(edge_index: Tensor, num_nodes: int) -> tuple[Tensor | None, Tensor]:
    """Return which edges are no loops, None where all are, and these edges with the new loops behind them."""
    source, target = host_copy(edge_index)
    kept, rows = int((source != target).sum()), None
    if kept < edge_index.size(1):
        rows = torch.nonzero_static(edge_index[0] != edge_index[1], size=kept).squeeze(1)
        edge_index = edge_index[:, rows]
    return rows, add_self_loops(edge_index, num_nodes=num_nodes)[0]
