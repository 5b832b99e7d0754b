"""Graphs for the tests of batches and shares of one large graph."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.utils import grid


def labelled(edge_index: torch.Tensor, num_nodes: int) -> Data:
    """Return a graph each of whose attributes tells which node or edge a row belongs to."""
    nodes, edges = torch.arange(num_nodes), torch.arange(edge_index.size(1))
    graph = Data(x=nodes[:, None].double(), y=nodes % 3, edge_index=edge_index, edge_attr=edges[:, None].double())
    for number, split in enumerate(("train", "val", "test")):
        graph[f"{split}_mask"] = nodes % 5 == number
    return graph


def mesh(height: int = 12, width: int = 15) -> Data:
    """Return a grid with diagonals and self-loops, in which every edge has a reverse."""
    edge_index, _ = grid(height, width)
    return labelled(edge_index, height * width)


def tangle(num_nodes: int = 60, num_edges: int = 200) -> Data:
    """Return a directed random graph with repeated edges, self-loops and isolated nodes."""
    generator = torch.Generator().manual_seed(0)
    return labelled(torch.randint(num_nodes - 5, (2, num_edges), generator=generator), num_nodes)
