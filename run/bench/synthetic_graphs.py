"""Synthetic graphs for benchmarks: roads, triangulations as superpixels are, trees as molecules, calls, random ones."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import Delaunay
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile

TREE_NODES, PLANAR_NODES = 151, 479  # mean sizes of Peptides and of PascalVOC-SP
ZINC_NODES, ZINC_SPREAD = 23, 4.5
COMPUTERS_NODES, COMPUTERS_EDGES = 13752, 491722  # edges in both directions
RINGS = 8  # of a tree, as rings of six nodes


def road_graph(rng: np.random.Generator, num_nodes: int, num_edges: int) -> Data:
    """Return a connected plane graph on random points, numbered at random: a spanning tree and the shortest others."""
    points = rng.random((num_nodes, 2))
    edges = triangulated(points)
    length = np.linalg.norm(points[edges[0]] - points[edges[1]], axis=1)
    spanning = minimum_spanning_tree(sp.csr_array((length, tuple(edges)), shape=(num_nodes,) * 2)).tocoo()
    in_tree = np.isin(edges[0] * num_nodes + edges[1], spanning.row.astype(np.int64) * num_nodes + spanning.col)
    others = edges[:, ~in_tree][:, length[~in_tree].argsort()]
    return undirected(np.hstack([edges[:, in_tree], others[:, : num_edges - (num_nodes - 1)]]), num_nodes)


def tree(rng: np.random.Generator, num_nodes: int = TREE_NODES, rings: int = RINGS) -> Data:
    """Return a tree with short branches and a few rings, as molecules of Peptides are."""
    child = np.arange(1, num_nodes)
    parent = child - 1 - rng.integers(0, np.minimum(child, 4))
    end = rng.integers(0, num_nodes - 5, rings)
    return undirected(np.hstack([[parent, child], [end, end + 5]]), num_nodes)


def planar(rng: np.random.Generator) -> Data:
    """Return a triangulation of random points, as superpixels that touch are."""
    return undirected(triangulated(rng.random((PLANAR_NODES, 2))), PLANAR_NODES)


def superpixels(rng: np.random.Generator) -> Data:
    """Return regions of an image, row by row, joined to those beside them: about 480 nodes, 2,800 directed edges."""
    num_nodes = int(rng.integers(455, 501))
    points = rng.random((num_nodes, 2))
    graph = undirected(triangulated(points[np.lexsort((points[:, 0], (points[:, 1] * 22).astype(int)))]), num_nodes)
    y = np.minimum(rng.geometric(0.5, num_nodes) - 1, 20)  # most are background, as in the photographs
    graph.x, graph.y = torch.from_numpy(rng.standard_normal((num_nodes, 14))).float(), torch.from_numpy(y)
    graph.edge_attr = torch.from_numpy(rng.standard_normal((graph.num_edges, 2))).float()
    return graph


def molecule(rng: np.random.Generator) -> Data:
    """Return a tree with rings, types of its atoms and bonds and a target: 23 nodes on average, as in ZINC."""
    graph = tree(rng, int(np.clip(rng.normal(ZINC_NODES, ZINC_SPREAD), 9, 38)), rings=3)
    graph.x = torch.from_numpy(rng.integers(0, 21, (graph.num_nodes, 1)))
    graph.edge_attr = torch.from_numpy(rng.integers(1, 4, graph.num_edges))
    graph.y = torch.from_numpy(rng.standard_normal(1)).float()
    return graph


def co_purchases(rng: np.random.Generator) -> Data:
    """Return products that were bought together, with words of their reviews and categories: sizes of Computers."""
    graph = erdos_renyi(rng, COMPUTERS_NODES, COMPUTERS_EDGES / COMPUTERS_NODES)
    graph.x = torch.from_numpy(rng.random((COMPUTERS_NODES, 767)) < 0.35).float()
    graph.y = torch.from_numpy(rng.integers(0, 10, COMPUTERS_NODES))
    return graph


def call_graph(rng: np.random.Generator) -> Data:
    """Return a call graph: each function is called by one before it and calls as many; 1,400 nodes on average."""
    num_nodes = int(np.clip(rng.lognormal(6.9, 0.85), 20, 4400))
    callee = np.repeat(np.arange(1, num_nodes), 2)
    caller = (callee * rng.random(len(callee)) ** 2).astype(np.int64)  # early ones call many
    edge_index = torch.from_numpy(np.unique(np.stack([caller, callee]), axis=1))
    graph = Data(None, edge_index, y=torch.from_numpy(rng.integers(0, 5, 1)), num_nodes=num_nodes)
    return LocalDegreeProfile()(graph)


def erdos_renyi(rng: np.random.Generator, num_nodes: int, mean_degree: float) -> Data:
    """Return a graph whose pairs of nodes are edges with probability mean_degree / num_nodes, independently."""
    num_pairs = num_nodes * (num_nodes - 1) // 2
    num_edges = int(rng.binomial(num_pairs, min(1.0, mean_degree / num_nodes)))
    key = np.zeros(0, dtype=np.int64)
    while len(key) < num_edges:  # pairs i < j, each equally likely, without those that are drawn twice
        i, j = rng.integers(0, num_nodes, (2, 3 * (num_edges - len(key)) + 10))
        key = np.unique(np.concatenate([key, (i * num_nodes + j)[i < j]]))
    key = rng.permutation(key)[:num_edges]
    return undirected(np.stack(np.divmod(key, num_nodes)), num_nodes)


def triangulated(points: np.ndarray) -> np.ndarray:
    """Return the edges of a Delaunay triangulation, each once: points (N, 2) -> (2, E)."""
    corners = Delaunay(points).simplices.astype(np.int64)
    edges = np.sort(np.vstack([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [0, 2]]]), axis=1)
    return np.unique(edges, axis=0).T


def undirected(edges: np.ndarray, num_nodes: int) -> Data:
    """Return the graph with both directions of each edge once, sorted: (2, E) -> edge_index (2, E')."""
    key = np.unique(np.concatenate([edges[0] * num_nodes + edges[1], edges[1] * num_nodes + edges[0]]))
    return Data(edge_index=torch.from_numpy(np.stack(np.divmod(key, num_nodes))), num_nodes=num_nodes)
