"""A graph cut into connected-looking parts of equal size, by recursive bisection (George and Liu 1978).

Each cut runs through the middle of a breadth-first order from a node at the rim, so it crosses about one level: few
edges on roads and meshes. On graphs of small diameter no partition is good, and this one is not tuned for them.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from torch import Tensor

from graphgps_kmip.errors import InputError

SMALL = 0.01  # of the nodes: components below stand together in the order, and are not searched one by one


def partition(edge_index: Tensor, num_nodes: int, parts: int) -> list[np.ndarray]:
    """Return the nodes of each part, in rising order; sizes differ by one at most.

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
    graph = csr_array((np.ones(len(both[0]), dtype=np.int8), both), shape=(num_nodes, num_nodes))
    done, waiting = [], [(np.arange(num_nodes), parts)]
    while waiting:
        nodes, count = waiting.pop()
        if count == 1:
            done.append(np.sort(nodes))
            continue
        order = nodes[_order(graph[nodes][:, nodes])]
        left = count // 2
        cut = sum(len(part) for part in np.array_split(nodes, count)[:left])
        waiting += [(order[cut:], count - left), (order[:cut], left)]
    return done


def _order(graph: csr_array) -> np.ndarray:
    """Return a breadth-first order of all nodes, component by component, each from a node at its rim."""
    _, label = connected_components(graph, directed=False)
    size = np.bincount(label)
    large = np.flatnonzero(size > SMALL * len(label))
    first = np.unique(label, return_index=True)[1]
    found = [_from_rim(graph, first[component]) for component in large]
    rest = np.flatnonzero(~np.isin(label, large))
    return np.concatenate([*found, rest[label[rest].argsort(kind="stable")]])


def _from_rim(graph: csr_array, start: int) -> np.ndarray:
    rim = breadth_first_order(graph, start, directed=False, return_predecessors=False)[-1]
    return breadth_first_order(graph, rim, directed=False, return_predecessors=False)
