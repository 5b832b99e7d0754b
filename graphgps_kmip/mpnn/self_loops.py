"""Self loops of message passing: those of the data are dropped and every node gets one, without waiting for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops

from graphgps_kmip.common.host_copies import host_copy


def with_own_loops(edge_index: Tensor, edge_attr: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Replace the self loops of a graph by one for each node, behind all other edges.

    What ``GATConv`` and ``GCNConv`` of torch_geometric do with ``add_self_loops=True``. There the host waits for the
    device in each layer, to learn how many loops there were; here it counts them in its own copy of the edges.

    Args:
        edge_index (Tensor): edges (source, target).
        edge_attr (Tensor or None): edge features; a new loop has the mean of those of the other edges into its node.
        num_nodes (int): N.

    Shapes:
        edge_index (2, E), edge_attr (E, C) -> (2, E' + N), (E' + N, C), E' edges that are no loops.
    """
    source, target = host_copy(edge_index)
    kept = int((source != target).sum())
    if kept < edge_index.size(1):
        rows = torch.nonzero_static(edge_index[0] != edge_index[1], size=kept).squeeze(1)
        edge_index = edge_index[:, rows]
        edge_attr = None if edge_attr is None else edge_attr[rows]
    return add_self_loops(edge_index, edge_attr, fill_value="mean", num_nodes=num_nodes)
