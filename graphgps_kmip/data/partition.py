"""Parts of one large graph: partition into equal parts, subgraphs of some nodes, and the shards of several processes.

The partition is recursive bisection (George and Liu 1978): each cut runs through the middle of a breadth-first order
from a peripheral node, so it crosses about one level: few edges on road networks and meshes. On graphs of small
diameter no partition is good, and this one is not tuned for them.
"""

from __future__ import annotations

import logging

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.errors import InputError

log = logging.getLogger(__name__)
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


def shard_of(graph: Data, rank: int, world_size: int) -> Data:
    """Return the shard of one process: its nodes, the edges that end in them, and the send and receive lists of halos.

    Nodes are partitioned into parts of equal size that few edges leave (`partition`). ``edge_index`` counts targets
    among the own nodes, sources among these and, behind them, the nodes of other processes (the halo) in the order in
    which they come: by rank. ``halo_rows`` are the own nodes to send, in order of the receiving rank, ``halo_send`` and
    ``halo_receive`` how many go to and come from each.

    Args:
        graph: the whole graph, the same in all processes.
        rank: number of this process.
        world_size: number W of processes, at most N.

    Shapes: of the result: x (n, F), edge_index (2, e), halo_rows (S,), halo_send and halo_receive (W,).

    Raises:
        ValueError: the graph has further pairs of nodes, which cannot be sharded yet.
    """
    for key in graph.keys():  # noqa: SIM118 (Data is no mapping)
        if key.endswith(PAIRS) and key != "edge_index":
            raise InputError(f"gt.kmip.shard: {key} cannot be sharded over processes: set it to False")
    parts = [torch.from_numpy(nodes) for nodes in partition(graph.edge_index, graph.num_nodes, world_size)]
    owner, place = torch.empty(2, graph.num_nodes, dtype=torch.long)
    for number, nodes in enumerate(parts):
        owner[nodes], place[nodes] = number, torch.arange(len(nodes))
    source, target = graph.edge_index
    # Every node that some process needs and does not own, once: in order of process, then of owner, then of place.
    away = owner[source] != owner[target]
    needed = torch.stack([owner[target], owner[source], place[source]])[:, away].unique(dim=1)
    receiver, sender, row = needed
    own = parts[rank]
    edges, _ = InEdges(graph.edge_index, graph.num_nodes).of(own)
    shard = Data(num_nodes=len(own))
    for key, value in graph:
        if key not in ("edge_index", "num_nodes"):
            shard[key] = value[own] if graph.is_node_attr(key) else value[edges] if graph.is_edge_attr(key) else value
    index = place.clone()  # of each node as a source
    for_us = receiver == rank
    index[_nodes(parts, sender[for_us], row[for_us])] = len(own) + torch.arange(int(for_us.sum()))
    shard.edge_index = torch.stack([index[source[edges]], place[target[edges]]])
    shard.halo_rows = row[sender == rank]
    shard.halo_send = receiver[sender == rank].bincount(minlength=world_size)
    shard.halo_receive = sender[for_us].bincount(minlength=world_size)
    log.info(
        "process %d of %d: %s nodes, %s edges, and %s nodes of others that it reads",
        rank,
        world_size,
        *(f"{count:,}" for count in (len(own), len(edges), int(for_us.sum()))),
    )
    return shard


def _nodes(parts: list[torch.Tensor], owner: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Return the nodes of the whole graph that have these places in these parts."""
    first = torch.from_numpy(np.cumsum([0, *map(len, parts)]))
    return torch.cat(parts)[first[owner] + place]
