"""Parts of one large graph: its edges by target, and the `Data` of some of its nodes and edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

PAIRS = ("edge_index", "pair_index")  # endings of attributes that hold pairs of nodes


class InEdges:
    """The edges of a graph, found by their targets.

    Args:
        edge_index: (2, E).
        num_nodes: N.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.source, target = edge_index
        self.order = target.argsort(stable=True)  # (E,) ids of edges, by target
        self.first = torch.cat([target.new_zeros(1), target.bincount(minlength=num_nodes).cumsum(0)])  # (N + 1,)

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of the edges that end in the nodes, node by node, and how many each has: (E',), (n,)."""
        count = self.first[nodes + 1] - self.first[nodes]
        start = self.first[nodes] - (count.cumsum(0) - count)  # minus the place in the result
        return self.order[start.repeat_interleave(count) + torch.arange(int(count.sum()))], count


def inside(edges: InEdges, nodes: Tensor, num_nodes: int) -> Tensor:
    """Return the ids of the edges from one of the nodes to another, by target; cost: the edges that end in them."""
    found, _ = edges.of(nodes)
    member = torch.zeros(num_nodes, dtype=torch.bool)
    member[nodes] = True
    return found[member[edges.source[found]]]


def part_of(graph: Data, nodes: Tensor, edges: Tensor) -> Data:
    """Return a graph of some nodes and edges, with their rows of every attribute.

    Further sets of pairs (``*_edge_index``, ``pair_index``) keep those inside the nodes.

    Args:
        graph: is not changed; what is neither of nodes nor of edges is shared.
        nodes: the new order.
        edges: ids of edges among them.

    Shapes: nodes (n,), edges (e,).
    """
    place = torch.full((graph.num_nodes,), -1)
    place[nodes] = torch.arange(len(nodes))
    part, kept = Data(num_nodes=len(nodes)), {"": edges}
    pairs = [key for key in graph.keys() if key.endswith(PAIRS)]  # noqa: SIM118 (Data is no mapping)
    for key in pairs:
        found = place[graph[key]]
        name = key.removesuffix("edge_index").removesuffix("index")
        if key != "edge_index":
            kept[name] = (found >= 0).all(dim=0).nonzero().squeeze(1)
        part[key] = found[:, kept[name]]
    for key, value in graph:
        owner = key.removesuffix("edge_attr").removesuffix("attr")
        if key in pairs or key == "num_nodes":
            continue
        if owner != key and owner in kept and isinstance(value, Tensor):
            part[key] = value[kept[owner]]
        elif graph.is_node_attr(key):
            part[key] = value[nodes]
        elif graph.is_edge_attr(key):
            part[key] = value[edges]
        else:
            part[key] = value
    return part
