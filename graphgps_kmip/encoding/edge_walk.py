"""Probabilities of random walks between the ends of edges (RWSEEdge): entries (i, j) of P, P^2, ..., P^k, P = D^-1 A.

The public k-MIP code has an encoding of this name for the loops of all nodes, the edges, and edges to and from two hub
nodes of a graph, dropping each of the latter with probability 0.2; it has no key for the numbers of steps and cannot be
switched on. Ours is of the edges alone: the loops are `random_walk.return_probabilities`, hubs are left out.

No power is ever held whole: a walk from i that is at its neighbour j after k steps has not been further away from i
than (k + 1) / 2 hops, so a block of start nodes needs only the nodes around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from graphgps_kmip.errors import InputError

Array = np.ndarray
WIDTH = 64  # start nodes of a block


def edge_walk_probabilities(
    edge_index: Tensor,
    num_nodes: int,
    times: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 256 << 20,
) -> Tensor:
    """Return how likely a random walk along the edges, started at i, is at j after each number of steps.

    A repeated edge counts as often as it stands there. A walk ends at a node without outgoing edges.

    Args:
        edge_index: edges (i, j) of one graph, or of several graphs one after another, as in a `Batch`.
        num_nodes: N.
        times: numbers of steps; the columns come in ascending order, as those of `return_probabilities`.
        dtype: of the result and of all sums.
        memory: bytes that the walks of one block of start nodes may take, next to the graph and the result.

    Shapes: edge_index (2, E) -> (E, len(times)).

    Raises:
        ValueError: no or negative times, or an edge names a node that does not exist.
    """
    times = sorted(times)
    if not times or times[0] < 0:
        raise InputError(f"kernel.times must be one or more numbers of steps >= 0, got {times}")
    source, target = edge_index.cpu().numpy().astype(np.int64).reshape(2, -1)
    if len(source) and (min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= num_nodes):
        raise InputError(f"edge_index names a node outside the graph, which has {num_nodes} nodes")
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    adjacency = sp.csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes,) * 2)
    pattern = (adjacency + adjacency.T).tocsr()
    degree = adjacency.sum(axis=1)
    back = (sp.diags_array(1 / degree.clip(min=1)) @ adjacency).T.tocsr().astype(numpy_dtype)  # P^T: walks are columns
    by_source = source.argsort(kind="stable")
    first = source[by_source].searchsorted(np.arange(num_nodes + 1))
    found = np.zeros((len(source), len(times)), numpy_dtype)
    width = int(np.clip(memory // (3 * max(num_nodes, 1) * numpy_dtype.itemsize), 1, WIDTH))  # two arrays of walks
    for block in _blocks(pattern, width):
        edges = by_source[_ranges(first, block)]
        starts = np.repeat(np.arange(len(block)), first[block + 1] - first[block])  # column of each edge's walk
        ball = _ball(pattern, block, (times[-1] + 1) // 2)
        place = np.empty(num_nodes, np.int64)
        place[ball] = np.arange(len(ball))
        ends = place[target[edges]]
        for steps, walks in enumerate(_walks(back[ball][:, ball], len(block), times[-1])):
            for column in np.flatnonzero(np.equal(times, steps)):
                found[edges, column] = walks[ends, starts]
    return torch.from_numpy(found)


def _walks(back: sp.csr_array, starts: int, steps: int) -> Iterator[Array]:
    """Yield where walks from the first nodes are after 0, 1, ..., steps steps: (nodes, starts)."""
    walks = np.eye(back.shape[0], starts, dtype=back.dtype)
    yield walks
    for _ in range(steps):
        walks = back @ walks
        yield walks


def _blocks(pattern: sp.csr_array, width: int) -> Iterator[Array]:
    """Yield blocks of nodes that have edges, in an order in which neighbours are close."""
    if pattern.nnz == 0:
        return
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True).astype(np.int64)
    order = order[np.diff(pattern.indptr)[order] > 0]
    yield from (order[start : start + width] for start in range(0, len(order), width))


def _ball(pattern: sp.csr_array, block: Array, hops: int) -> Array:
    """Return the nodes within so many hops (one at least) of a block, its own first."""
    seen = np.zeros(pattern.shape[0], bool)
    seen[block] = True
    layers = [block]
    for _ in range(max(hops, 1)):
        near = np.unique(pattern.indices[_ranges(pattern.indptr, layers[-1])])
        layers.append(near[~seen[near]])
        seen[layers[-1]] = True
    return np.concatenate(layers)


def _ranges(first: Array, rows: Array) -> Array:
    """Return first[row], ..., first[row + 1] - 1 of one row after the other."""
    count = (first[rows + 1] - first[rows]).astype(np.int64)
    return np.arange(count.sum()) + np.repeat(first[rows] - (np.cumsum(count) - count), count)
