"""Changes of graphs after loading: order of the nodes, reverse edges, self loops, normalised features.

Networks that mix nodes along their order need one (GECO, section 3.5). Reverse edges and self loops are as Exphormer's
code adds them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.partition import breadth_first, part_of
from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs

AS_GIVEN = "natural"


def _random(graph: Data, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(graph.num_nodes)


def _by_degree(graph: Data, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    degree = graph.edge_index[1].bincount(minlength=graph.num_nodes).numpy()
    return np.argsort(-degree, kind="stable")


def _breadth_first(graph: Data, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    return breadth_first(_adjacency(graph)) if graph.num_nodes else np.arange(0)


def _spectral(graph: Data, rng: np.random.Generator) -> np.ndarray:  # noqa: ARG001
    """By the Fiedler vector of each component, components from large to small."""
    adjacency, found = _adjacency(graph), []
    _, label = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    for component in np.argsort(-np.bincount(label), kind="stable") if graph.num_nodes else ():
        nodes = np.flatnonzero(label == component)
        found.append(nodes[_fiedler_order(adjacency[nodes][:, nodes])])
    return np.concatenate([*found, np.arange(0)])


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
    "random": _random,
    "degree": _by_degree,
    "bfs": _breadth_first,
    "spectral": _spectral,
}


def node_order(graph: Data, kind: str, seed: int = 0, number: int = 0) -> Tensor:
    """Return which node stands at each place of an order.

    Args:
        graph: with ``edge_index``; is not changed.
        kind: ``natural``, as the data has it; ``random``; ``degree``, from many in-edges to few; ``bfs``, breadth first
            from a peripheral node; ``spectral``, by the eigenvector of the second smallest eigenvalue of the
            Laplacian I - D^-1 A (Fiedler vector). In the last two components stand one behind the other; ties stay as
            in the data.
        seed: of ``random``.
        number: of the graph in its data set, for ``random``.

    Shapes: returns (N,).

    Raises:
        ValueError: no such kind, with near misses.
    """
    order = look_up(ORDERS, kind, "prep.node_order")
    if order is None:
        return torch.arange(graph.num_nodes)
    return torch.from_numpy(order(graph, np.random.default_rng((seed, number))))


class OrderedGraphs(Sequence[Data]):
    """Graphs whose nodes stand in an order, made when a graph is read.

    Args:
        graphs: of a data set; are not changed.
        kind: see `node_order`.
        seed: likewise.
    """

    def __init__(self, graphs: Sequence[Data], kind: str, seed: int) -> None:
        self.graphs, self.kind, self.seed = graphs, kind, seed

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        """Return a graph with features, labels, masks and edges of its nodes in the order."""
        graph = self.graphs[index]
        order = node_order(graph, self.kind, self.seed, index % len(self.graphs))
        return part_of(graph, order, torch.arange(graph.num_edges))

    def __iter__(self) -> Iterator[Data]:
        return (self[index] for index in range(len(self)))


def in_order(dataset: GraphDataset, kind: str, seed: int) -> GraphDataset:
    """Return the data set with the nodes of each graph in an order; one large graph is ordered at once.

    Args:
        dataset: is not changed.
        kind: see `node_order`; ``natural`` returns it as it is.
        seed: of ``random``.
    """
    if kind == AS_GIVEN:
        return dataset
    graphs = OrderedGraphs(dataset.graphs, kind, seed)
    return dataset.with_graphs(list(graphs) if len(graphs) == 1 else graphs)


def with_reverse_edges(graph: Data) -> Data:
    """Return a copy of a graph in which each edge is given in both directions, once.

    Args:
        graph: is not changed.

    Shapes:
        edge_index (2, E) -> (2, E') sorted; edge_attr alike, the mean of both directions.
    """
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    edge_attr = None if graph.edge_attr is None else torch.cat([graph.edge_attr, graph.edge_attr])
    if edge_attr is None:
        both = coalesce(both, num_nodes=graph.num_nodes)
    else:
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


def with_normalized_features(graph: Data) -> Data:
    """Return a copy of a graph in which the absolute features of each node sum to 1; those of zeros stay so.

    Kipf and Welling 2017, section 5.2, do so with bags of words, which have no negative features.

    Shapes:
        x (N, C) -> (N, C), in floating point.
    """
    graph = copy.copy(graph)
    x = graph.x if graph.x.is_floating_point() else graph.x.float()
    graph.x = normalize(x, p=1, dim=1)
    return graph
