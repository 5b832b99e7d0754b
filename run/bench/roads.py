"""Synthetic maps of roads: connected, nearly planar, with long detours and dead ends."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from torch import Tensor


def road_map(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Return both directions of the edges of a random map.

    A random spanning tree of a grid, and further grid edges at random; nodes are numbered at random, so that neither
    memory nor partitions profit from their order.

    Args:
        num_nodes: N, those of the grid's last row need not fill it.
        num_edges: undirected, from N - 1 to about 2 N.
        seed: of the draws.

    Shapes: (2, 2 num_edges), int64.

    Raises:
        ValueError: more edges than the grid has, or too few to connect it.
    """
    rng = np.random.default_rng(seed)
    width = math.isqrt(num_nodes)
    node = np.arange(num_nodes)
    right = node[(node % width < width - 1) & (node + 1 < num_nodes)]
    down = node[node + width < num_nodes]
    source = np.concatenate([right, down])
    target = np.concatenate([right + 1, down + width])
    if not num_nodes - 1 <= num_edges <= len(source):
        raise ValueError(f"a map of {num_nodes} nodes has {num_nodes - 1} to {len(source)} edges, got {num_edges}")
    weight = rng.permutation(len(source)) + 1.0
    tree = minimum_spanning_tree(csr_array((weight, (source, target)), shape=(num_nodes, num_nodes)))
    chosen = np.argsort(~np.isin(weight, tree.data), kind="stable")  # the tree first
    rest = rng.permutation(chosen[num_nodes - 1 :])[: num_edges - num_nodes + 1]
    chosen = np.concatenate([chosen[: num_nodes - 1], rest])
    name = rng.permutation(num_nodes)
    edges = torch.from_numpy(np.stack([name[source[chosen]], name[target[chosen]]]))
    return torch.cat([edges, edges.flip(0)], dim=1)
