"""Parts of one large graph: partition into equal parts, and subgraphs of some nodes.

The partition is recursive bisection (George and Liu 1978): each cut runs through the middle of a breadth-first order
from a peripheral node, so it crosses about one level: few edges on road networks and meshes. On graphs of small
diameter no partition is good, and this one is not tuned for them.
"""

from __future__ import annotations

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.errors import InputError

PAIRS = ("edge_index", "pair_index")  # endings of attributes that hold pairs of nodes
SMALL = 0.01  # of the nodes: smaller components come last in the order, and are not searched one by one


def partition(edge_index: Tensor, num_nodes: int, parts: int) -> list[np.ndarray]:
    """Return the nodes of each part, in increasing order; sizes differ by one at most.

    Args:
        edge_index: edges, in whatever directions.
        num_nodes: N.
        parts: their number, 1 to N.

    Shapes: edge_index (2, E) -> arrays (N / parts,). Cost O((N + E) log parts).

    Raises:
        ValueError: parts below 1 or above N.
    """
    if not 1 <= parts <= num_nodes:
        raise InputError(f"a graph of {num_nodes} nodes cannot be cut into {parts} parts: set train.train_parts")
    source, target = edge_index.numpy()
    both = (np.concatenate([source, target]), np.concatenate([target, source]))
    graph = scipy.sparse.csr_array((np.ones(len(both[0]), dtype=np.int8), both), shape=(num_nodes, num_nodes))
    done, waiting = [], [(np.arange(num_nodes), parts)]
    while waiting:
        nodes, count = waiting.pop()
        if count == 1:
            done.append(np.sort(nodes))
            continue
        order = nodes[breadth_first(graph[nodes][:, nodes])]
        left = count // 2
        cut = sum(len(part) for part in np.array_split(nodes, count)[:left])
        waiting += [(order[cut:], count - left), (order[:cut], left)]
    return done


def breadth_first(graph: scipy.sparse.csr_array) -> np.ndarray:
    """Return a breadth-first order of all nodes, component by component, each from a peripheral node."""
    _, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    size = np.bincount(label)
    large = np.flatnonzero(size > SMALL * len(label))
    first = np.unique(label, return_index=True)[1]
    found = [_from_periphery(graph, first[component]) for component in large]
    rest = np.flatnonzero(~np.isin(label, large))
    return np.concatenate([*found, rest[label[rest].argsort(kind="stable")]])


def _from_periphery(graph: scipy.sparse.csr_array, start: int) -> np.ndarray:
    last = scipy.sparse.csgraph.breadth_first_order(graph, start, directed=False, return_predecessors=False)[-1]
    return scipy.sparse.csgraph.breadth_first_order(graph, last, directed=False, return_predecessors=False)


class InEdges:
    """The edges (2, E) of a graph of N nodes, found by their targets."""

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
        if key == "edge_index":
            part[key] = place[graph[key][:, edges]]  # not of all edges: a part can be small
            continue
        found = place[graph[key]]
        name = key.removesuffix("edge_index").removesuffix("index")
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
