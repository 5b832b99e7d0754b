"""Distances, degrees and paths of edges inside a graph, as Graphormer reads them (Ying et al. 2021, section 3.1)."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from graphgps_kmip.errors import InputError

Array = np.ndarray
MOST_NODES = 10_000  # of one graph: 1 GB of distances, and its solver takes 1.2 GB more
UNREACHABLE = -1
NO_EDGE = -1


def in_and_out_degrees(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return how many edges end in each node, and how many leave it; a repeated edge counts as often as it stands.

    Shapes: edge_index (2, E) -> (N,), (N,), int64.
    """
    leaving, ending = (torch.bincount(ends, minlength=num_nodes) for ends in edge_index)
    return ending, leaving


def shortest_distances(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return how many edges the shortest path from each node i to each node j has; `UNREACHABLE` where there is none.

    Args:
        edge_index: directed edges of one graph.
        num_nodes: N.

    Shapes: edge_index (2, E) -> (N * N,), int16, pair (i, j) in row i * N + j.

    Raises:
        ValueError: more than `MOST_NODES` nodes, or an edge names a node that does not exist.
    """
    return torch.from_numpy(_paths(edge_index, num_nodes)[0].reshape(-1))


def path_types(edge_index: Tensor, num_nodes: int, edge_types: Tensor, longest: int) -> Tensor:
    """Return the types of the first ``longest`` edges on a shortest path from each node i to each node j.

    Which of several shortest paths it is depends on the order of the nodes; of repeated edges the first one counts.

    Args:
        edge_index: directed edges of one graph.
        num_nodes: N.
        edge_types: one integer for each edge.
        longest: L, edges that are kept of a path.

    Shapes: edge_index (2, E), edge_types (E,) or (E, 1) -> (N * N, L), int16; `NO_EDGE` behind the end of a path.

    Raises:
        ValueError: as `shortest_distances`, or edges without a single integral type.
    """
    types = _types(edge_types, edge_index.size(1))
    distances, before = _paths(edge_index, num_nodes)
    found = np.full((num_nodes, num_nodes, longest), NO_EDGE, np.int16)
    source, target = edge_index.cpu().numpy()
    keys, first = np.unique(source * num_nodes + target, return_index=True)
    types = types[first]
    start, end = np.nonzero(distances > 0)
    node = end.copy()
    while len(node):  # all paths at once, backwards from their ends
        last = before[start, node]
        place = distances[start, node] - 1
        kept = place < longest
        edge = keys.searchsorted(last[kept] * num_nodes + node[kept])
        found[start[kept], end[kept], place[kept]] = types[edge]
        on = place > 0
        start, end, node = start[on], end[on], last[on]
    return torch.from_numpy(found.reshape(-1, longest))


def _paths(edge_index: Tensor, num_nodes: int) -> tuple[Array, Array]:
    """Return distances, and the node before j on a shortest path from i to j: (N, N), (N, N)."""
    if num_nodes > MOST_NODES:
        raise InputError(
            f"GraphormerBias keeps a number for all pairs of nodes, possible up to {MOST_NODES} nodes, got "
            f"{num_nodes}: set posenc_GraphormerBias.node_degrees_only True"
        )
    source, target = edge_index.cpu().numpy().astype(np.int64).reshape(2, -1)
    if len(source) and (min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= num_nodes):
        raise InputError(f"edge_index names a node outside the graph, which has {num_nodes} nodes")
    adjacency = sp.csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes,) * 2)
    adjacency.sum_duplicates()
    distances, before = shortest_path(adjacency, method="D", unweighted=True, return_predecessors=True)
    return np.where(np.isinf(distances), UNREACHABLE, distances).astype(np.int16), before.astype(np.int64)


def _types(edge_types: Tensor, num_edges: int) -> Array:
    if edge_types.is_floating_point() or edge_types.numel() != num_edges:
        raise InputError(
            "posenc_GraphormerBias.edge_types needs one integer for each edge, got edge_attr "
            f"{tuple(edge_types.shape)} of {edge_types.dtype}: set it to False"
        )
    types = edge_types.reshape(-1).cpu().numpy()
    if len(types) and (types.min() < 0 or types.max() > np.iinfo(np.int16).max):
        raise InputError(f"edge types must be 0 to {np.iinfo(np.int16).max}, got {types.min()} to {types.max()}")
    return types
