"""A small graph with features, as colourings and models of this room take it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes, edges (source, target) and their features; both directions of an undirected edge stand there.

    Args:
        num_nodes: N.
        edge_index: edges; one that stands there twice counts twice.
        x: features of nodes, or None: all alike.
        edge_attr: features of edges, or None: all alike.

    Shapes: edge_index (2, E), x (N, F), edge_attr (E, F).

    Raises:
        ValueError: an edge to a node that does not exist, or features of another number of nodes or edges.
    """

    num_nodes: int
    edge_index: Tensor
    x: Tensor | None = None
    edge_attr: Tensor | None = None

    def __post_init__(self) -> None:
        ends = self.edge_index
        if ends.numel() and (int(ends.min()) < 0 or int(ends.max()) >= self.num_nodes):
            raise InputError(f"edge_index names node {int(ends.max())}, but the graph has {self.num_nodes} nodes")
        for name, rows, count in (("x", self.x, self.num_nodes), ("edge_attr", self.edge_attr, ends.size(1))):
            if rows is not None and len(rows) != count:
                raise InputError(f"{name} has {len(rows)} rows, expected {count}: one for each of them")

    def permuted(self, order: Tensor) -> Graph:
        """Return the same graph with its nodes in another order, old node ``order[i]`` as node i."""
        place = order.argsort()
        return replace(self, edge_index=place[self.edge_index], x=None if self.x is None else self.x[order])

    def with_features(self, x: Tensor | None = None, edge_attr: Tensor | None = None) -> Graph:
        """Return the graph with other features, those that are not given as they were."""
        return replace(self, x=self.x if x is None else x, edge_attr=self.edge_attr if edge_attr is None else edge_attr)


def directed(edges: Iterable[tuple[int, int]], num_nodes: int) -> Graph:
    """Return the graph of these edges, from the first node to the second."""
    return Graph(num_nodes, torch.tensor(list(edges), dtype=torch.long).reshape(-1, 2).T)


def undirected(edges: Iterable[tuple[int, int]], num_nodes: int) -> Graph:
    """Return the graph of these edges, each in both directions."""
    edges = list(edges)
    return directed(edges + [(b, a) for a, b in edges], num_nodes)


def cycle(num_nodes: int) -> Graph:
    """Return one cycle of N >= 3 nodes."""
    return undirected([(node, (node + 1) % num_nodes) for node in range(num_nodes)], num_nodes)


def circulant(num_nodes: int, steps: Iterable[int]) -> Graph:
    """Return the graph where node i is linked to i + s, around the circle, for every step s < N / 2."""
    return undirected([(node, (node + step) % num_nodes) for step in steps for node in range(num_nodes)], num_nodes)


def union(*graphs: Graph) -> Graph:
    """Return the graphs without features side by side, as one graph."""
    edges, size = [], 0
    for graph in graphs:
        edges.append(graph.edge_index + size)
        size += graph.num_nodes
    return Graph(size, torch.cat(edges, dim=1))
