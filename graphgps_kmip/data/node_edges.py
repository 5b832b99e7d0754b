"""Further edges of a graph whose nodes are classified: reverse edges and self loops, as Exphormer's code adds them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops


def with_reverse_edges(graph: Data, raw: bool = False) -> Data:
    """Return a copy of a graph in which each edge stands in both directions.

    Args:
        graph: is not changed.
        raw: append the reverse of every edge without looking whether it is there: in a graph that is undirected
            already every edge then counts twice.

    Shapes:
        edge_index (2, E) -> (2, E') sorted, (2, 2 E) if raw; edge_attr alike, the mean of both directions.
    """
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    edge_attr = None if graph.edge_attr is None else torch.cat([graph.edge_attr, graph.edge_attr])
    if not raw and edge_attr is None:
        both = coalesce(both, num_nodes=graph.num_nodes)
    elif not raw:
        kind = edge_attr.dtype
        both, edge_attr = coalesce(both, edge_attr.double(), graph.num_nodes, reduce="mean")
        edge_attr = edge_attr.to(kind)
    return _with(graph, both, edge_attr)


def with_self_loops(graph: Data) -> Data:
    """Return a copy of a graph in which each node has one edge to itself, with zeros as edge features.

    Exphormer's code leaves out nodes without edges, and adds a second loop to a node that has one.
    """
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    kept, edge_attr = remove_self_loops(graph.edge_index, graph.edge_attr)
    if edge_attr is not None:
        edge_attr = torch.cat([edge_attr, edge_attr.new_zeros(graph.num_nodes, *edge_attr.shape[1:])])
    return _with(graph, torch.cat([kept, loops], dim=1), edge_attr)


def _with(graph: Data, edge_index: Tensor, edge_attr: Tensor | None) -> Data:
    graph = copy.copy(graph)
    graph.edge_index, graph.edge_attr = edge_index, edge_attr
    return graph
