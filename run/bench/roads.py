"""Synthetic plane graphs: triangulations, as superpixels that touch are, and road maps."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay
from torch_geometric.data import Data


def road_map(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Data:
    """Return a connected plane graph on random points: a spanning tree and the shortest others.

    Nodes are numbered at random, so that neither memory nor partitions profit from their order.

    Args:
        rng: draws the points.
        num_nodes: N.
        num_edges: each counted once, N - 1 to nearly 3 N.
    """
    points = rng.random((num_nodes, 2))
    edges = triangulated(points)
    length = np.linalg.norm(points[edges[0]] - points[edges[1]], axis=1)
    tree = minimum_spanning_tree(sp.csr_array((length, tuple(edges)), shape=(num_nodes,) * 2)).tocoo()
    in_tree = np.isin(edges[0] * num_nodes + edges[1], tree.row.astype(np.int64) * num_nodes + tree.col)
    others = edges[:, ~in_tree][:, length[~in_tree].argsort()]
    return undirected(np.hstack([edges[:, in_tree], others[:, : num_edges - (num_nodes - 1)]]), num_nodes)


def triangulated(points: np.ndarray) -> np.ndarray:
    """Return the edges of a Delaunay triangulation, each once: points (N, 2) -> (2, E)."""
    corners = Delaunay(points).simplices.astype(np.int64)
    edges = np.sort(np.vstack([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]), axis=1)
    return np.unique(edges, axis=0).T


def undirected(edges: np.ndarray, num_nodes: int) -> Data:
    """Return the graph with both directions of each edge once, sorted: (2, E) -> edge_index (2, E')."""
    key = np.unique(np.concatenate([edges[0] * num_nodes + edges[1], edges[1] * num_nodes + edges[0]]))
    return Data(edge_index=torch.from_numpy(np.stack(np.divmod(key, num_nodes))), num_nodes=num_nodes)
