"""Changes of graphs after loading: order of nodes, reverse edges, self loops, normalised features, partitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.errors import InputError

AS_GIVEN = "natural"


def _spectral(graph: Data, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """By the Fiedler vector of each component, components from large to small."""
    adjacency, orders = _adjacency(graph), []
    _, label = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    for component in np.argsort(-np.bincount(label), kind="stable") if graph.num_nodes else ():
        nodes = np.flatnonzero(label == component)
        orders.append(nodes[_fiedler_order(adjacency[nodes][:, nodes])])
    return np.concatenate([*orders, np.arange(0)])


def _fiedler_order(adjacency: scipy.sparse.csr_array) -> np.ndarray:
    if adjacency.shape[0] < 3:
        return np.arange(adjacency.shape[0])
    edge_index = torch.from_numpy(np.stack(adjacency.nonzero()).astype(np.int64))
    _, vectors = laplacian_eigenpairs(edge_index, adjacency.shape[0], 2, "rw")
    vector = vectors[:, 1].double().numpy()
    largest = vector[np.abs(vector).argmax()]  # fixes the sign, which the solver does not
    return np.argsort(np.round(vector * np.sign(largest), 9), kind="stable")


def _adjacency(graph: Data) -> scipy.sparse.csr_array:
    source, target = graph.edge_index.numpy()
    size = graph.num_nodes
    return scipy.sparse.csr_array((np.ones(len(source), dtype=np.int8), (source, target)), shape=(size, size))


Order = Callable[[Data, np.random.Generator], np.ndarray]
ORDERS: dict[str, Order | None] = {
    AS_GIVEN: None,
    "random": lambda graph, rng: rng.permutation(graph.num_nodes),
    "degree": lambda graph, _: (-graph.edge_index[1].bincount(minlength=graph.num_nodes)).argsort(stable=True).numpy(),
    "bfs": lambda graph, _: breadth_first(_adjacency(graph)) if graph.num_nodes else np.arange(0),
    "spectral": _spectral,
}


def node_order(graph: Data, kind: str, seed: int = 0, number: int = 0) -> Tensor:
    """Return which node is at each place of an order.

    Args:
        graph: with ``edge_index``; is not changed.
        kind: ``natural``; ``random``; ``degree``, from many in-edges to few; ``bfs``, breadth first from a peripheral
            node; ``spectral``, by the Fiedler vector of I - D^-1 A. The last two take one component after the other;
            ties stay as in the data.
        seed: of ``random``.
        number: of the graph in its data set, for ``random``.

    Shapes: returns (N,).
    """
    order = look_up(ORDERS, kind, "prep.node_order")
    if order is None:
        return torch.arange(graph.num_nodes)
    return torch.from_numpy(order(graph, np.random.default_rng((seed, number))))


class OrderedGraphs(Sequence[Data]):
    """Graphs whose nodes are in an order, made when a graph is read; arguments as of `order_nodes`."""

    def __init__(self, graphs: Sequence[Data], kind: str, seed: int) -> None:
        self.graphs, self.kind, self.seed = graphs, kind, seed

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        graph = self.graphs[index]
        order = node_order(graph, self.kind, self.seed, index % len(self.graphs))
        part = select_part(graph, order, torch.arange(graph.num_edges))
        part.node_id = order  # so that predictions name nodes as the data does
        return part

    def __iter__(self) -> Iterator[Data]:
        return (self[index] for index in range(len(self)))


def order_nodes(dataset: GraphDataset, kind: str, seed: int) -> GraphDataset:
    """Return the data set with the nodes of each graph in an order, see `node_order`; one graph is ordered at once."""
    if kind == AS_GIVEN:
        return dataset
    graphs = OrderedGraphs(dataset.graphs, kind, seed)
    return dataset.with_graphs(list(graphs) if len(graphs) == 1 else graphs)


def with_reverse_edges(graph: Data) -> Data:
    """Return a copy of a graph in which each edge is given in both directions, once; edge_attr is the mean of both.

    Shapes: edge_index (2, E) -> (2, E') sorted.
    """
    both, edge_attr = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1), graph.edge_attr
    if edge_attr is None:
        both = coalesce(both, num_nodes=graph.num_nodes)
    else:
        both, mean = coalesce(both, torch.cat([edge_attr, edge_attr]).double(), graph.num_nodes, reduce="mean")
        edge_attr = mean.to(edge_attr.dtype)
    return _replace_edges(graph, both, edge_attr)


def with_self_loops(graph: Data) -> Data:
    """Return a copy of a graph in which each node has one edge to itself, with zeros as edge features."""
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    others, edge_attr = remove_self_loops(graph.edge_index, graph.edge_attr)
    if edge_attr is not None:
        edge_attr = torch.cat([edge_attr, edge_attr.new_zeros(graph.num_nodes, *edge_attr.shape[1:])])
    return _replace_edges(graph, torch.cat([others, loops], dim=1), edge_attr)


def _replace_edges(graph: Data, edge_index: Tensor, edge_attr: Tensor | None) -> Data:
    graph = copy.copy(graph)
    graph.edge_index, graph.edge_attr = edge_index, edge_attr
    return graph


def with_normalized_features(graph: Data) -> Data:
    """Return a copy of a graph in which the absolute features of each node sum to 1 (Kipf and Welling 2017, 5.2)."""
    graph = copy.copy(graph)
    graph.x = normalize(graph.x if graph.x.is_floating_point() else graph.x.float(), p=1, dim=1)
    return graph


PAIRS = ("edge_index", "pair_index")  # endings of attributes that hold pairs of nodes
SMALL = 0.01  # of the nodes: smaller components come last in the order, and are not searched one by one


def partition(edge_index: Tensor, num_nodes: int, parts: int) -> list[np.ndarray]:
    """Cut a graph into parts of equal size, up to one node; return the nodes of each in increasing order.

    Recursive bisection (George and Liu 1978): each cut runs through the middle of a breadth-first order from a
    peripheral node, and crosses few edges on road networks and meshes.

    Args:
        edge_index: edges, in whatever directions.
        num_nodes: N.
        parts: their number, 1 to N.

    Shapes: edge_index (2, E) -> arrays (N / parts,). Cost O((N + E) log parts).
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
    walk = partial(scipy.sparse.csgraph.breadth_first_order, directed=False, return_predecessors=False)
    orders = [walk(graph, walk(graph, first[component])[-1]) for component in large]
    rest = np.flatnonzero(~np.isin(label, large))
    return np.concatenate([*orders, rest[label[rest].argsort(kind="stable")]])


class InEdges:
    """Index of the edges (2, E) of a graph of N nodes by their targets."""

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.source, target = edge_index
        self.order = target.argsort(stable=True)  # (E,) ids of edges, by target
        self.first = torch.cat([target.new_zeros(1), target.bincount(minlength=num_nodes).cumsum(0)])  # (N + 1,)

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ids of the edges that end in the nodes, node by node, and how many each has: (E',), (n,)."""
        count = self.first[nodes + 1] - self.first[nodes]
        start = self.first[nodes] - (count.cumsum(0) - count)  # minus the place in the result
        return self.order[start.repeat_interleave(count) + torch.arange(int(count.sum()))], count


def edges_among(edges: InEdges, nodes: Tensor, num_nodes: int) -> Tensor:
    """Return the ids of the edges from one of the nodes to another, by target; cost: the edges that end in them."""
    ids, _ = edges.of(nodes)
    member = torch.zeros(num_nodes, dtype=torch.bool)
    member[nodes] = True
    return ids[member[edges.source[ids]]]


def select_part(graph: Data, nodes: Tensor, edges: Tensor) -> Data:
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
    part, rows = Data(num_nodes=len(nodes)), {"": edges}  # rows: of each set of pairs, by the beginning of its name
    pairs = [key for key in graph.keys() if key.endswith(PAIRS)]  # noqa: SIM118 (Data is no mapping)
    for key in pairs:
        if key == "edge_index":
            part[key] = place[graph[key][:, edges]]  # not of all edges: a part can be small
            continue
        places = place[graph[key]]
        name = key.removesuffix("edge_index").removesuffix("index")
        rows[name] = (places >= 0).all(dim=0).nonzero().squeeze(1)
        part[key] = places[:, rows[name]]
    for key, value in graph:
        owner = key.removesuffix("edge_attr").removesuffix("attr")
        if key in pairs or key == "num_nodes":
            continue
        if owner != key and owner in rows and isinstance(value, Tensor):
            part[key] = value[rows[owner]]
        elif graph.is_node_attr(key):
            part[key] = value[nodes]
        elif graph.is_edge_attr(key):
            part[key] = value[edges]
        else:
            part[key] = value
    return part
