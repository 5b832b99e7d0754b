"""Random walk encoding of edges (RWSEEdge): entries (i, j) of P, P^2, ..., P^k for each edge (i, j), with P = D^-1 A.

The public k-MIP code has an encoding of this name for self-loops of all nodes, the edges, and edges to and from two hub
nodes of a graph, dropping each of the latter with probability 0.2; it has no key for the numbers of steps and cannot be
enabled. Ours encodes the edges alone: for self-loops there is `random_walk.return_probabilities`, hubs are left out.

No power is ever held whole: a walk from i that is at its neighbour j after k steps has not been further away from i
than (k + 1) / 2 hops, so a block of start nodes needs only the nodes around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.positional_encoding import EdgeEncoding
from graphgps_kmip.encoding.random_walk import Steps, TimesEncoding, joined, nodes_within, ranges, sorted_steps
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import FRACTION, NATURAL
from graphgps_kmip.registry import register

Array = np.ndarray
WIDTH = 64  # start nodes of a block


@register("encoding", "RWSEEdge")
class RWSEEdge(TimesEncoding, EdgeEncoding):
    """Probabilities of random walks from one end of an edge to the other."""

    kernel: Steps = Steps(times_func="range(1, 21)")
    num_global: Annotated[int, NATURAL] = 2  # public, and without influence, as the next one: see above
    global_edge_dropout: Annotated[float, FRACTION] = 0.2
    norm: ClassVar[bool] = True

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the `edge_walk_probabilities`, of all graphs at once."""
        edges, sizes = joined(graphs)
        table = edge_walk_probabilities(edges, sum(sizes), **settings)
        return [{self.attribute: part} for part in table.split([graph.num_edges for graph in graphs])]


def edge_walk_probabilities(
    edge_index: Tensor,
    num_nodes: int,
    times: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
    memory: int = 256 << 20,
) -> Tensor:
    """Return how likely a random walk along the edges, started at i, is at j after each number of steps.

    A repeated edge counts as often as it occurs. A walk ends at a node without outgoing edges.

    Args:
        edge_index (Tensor): Edges (i, j) of one graph, or of several graphs one after another, as in a `Batch`.
        num_nodes (int): N.
        times (Sequence[int]): Numbers of steps; the columns come in ascending order, as those of
            `return_probabilities`.
        dtype (dtype, optional): Of the result and of all sums. (default: ``torch.float32``)
        memory (int, optional): Bytes that the walks of one block of start nodes may take, next to the graph and the
            result. (default: ``256 << 20``)

    Shapes: edge_index (2, E) -> (E, len(times)).

    Raises:
        InputError: no times, negative ones or fractions, or an edge names a node that does not exist.
    """
    times = sorted_steps(times)
    source, target = edge_index.cpu().numpy().astype(np.int64).reshape(2, -1)
    if len(source) and (min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= num_nodes):
        raise InputError(f"edge_index names a node outside the graph, which has {num_nodes} nodes")
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    adjacency = scipy.sparse.csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes,) * 2)
    pattern = (adjacency + adjacency.T).tocsr()
    degree = adjacency.sum(axis=1)
    back = (scipy.sparse.diags_array(1 / degree.clip(min=1)) @ adjacency).T.tocsr()  # P^T: walks are columns
    back = back.astype(numpy_dtype)
    by_source = source.argsort(kind="stable")
    first = source[by_source].searchsorted(np.arange(num_nodes + 1))
    found = np.zeros((len(source), len(times)), numpy_dtype)
    width = int(np.clip(memory // (3 * max(num_nodes, 1) * numpy_dtype.itemsize), 1, WIDTH))  # two arrays of walks
    for block in _blocks(pattern, width):
        edges = by_source[ranges(first, block)]
        starts = np.repeat(np.arange(len(block)), first[block + 1] - first[block])  # column of each edge's walk
        ball, _ = nodes_within(pattern, block, max((times[-1] + 1) // 2, 1))
        place = np.empty(num_nodes, np.int64)
        place[ball] = np.arange(len(ball))
        ends = place[target[edges]]
        for steps, walks in enumerate(_walks(back[ball][:, ball], len(block), times[-1])):
            for column in np.flatnonzero(np.equal(times, steps)):
                found[edges, column] = walks[ends, starts]
    return torch.from_numpy(found)


def _walks(back: scipy.sparse.csr_array, starts: int, steps: int) -> Iterator[Array]:
    """Yield where walks from the first nodes are after 0, 1, ..., steps steps: (nodes, starts)."""
    walks = np.eye(back.shape[0], starts, dtype=back.dtype)
    yield walks
    for _ in range(steps):
        walks = back @ walks
        yield walks


def _blocks(pattern: scipy.sparse.csr_array, width: int) -> Iterator[Array]:
    """Yield blocks of nodes that have edges, in an order in which neighbours are close."""
    if pattern.nnz == 0:
        return
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(pattern, symmetric_mode=True).astype(np.int64)
    order = order[np.diff(pattern.indptr)[order] > 0]
    yield from (order[start : start + width] for start in range(0, len(order), width))
