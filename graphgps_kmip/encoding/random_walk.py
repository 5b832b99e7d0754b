"""Random walk encodings: RWSE of nodes, the diagonals of P, ..., P^k with P = D^-1 A, and RWSEEdge of edges.

Dwivedi et al. 2022 (RWPE). No power is ever whole in memory: (P^(a+b))_jj is the dot product of row j of P^a and column
j of P^b, and half a walk stays close to its start. The public k-MIP code cannot enable its RWSEEdge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.encoding.positional_encoding import EdgeEncoding, NodeEncoding, edge_array
from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.ranges import FRACTION, NATURAL, Each, Pattern, Range, Registered, whole
from graphgps_kmip.registry import register

Array = np.ndarray
Step = Callable[[Array, int], Array]  # (X, half) -> one step more; half counts from 1

SMALL = 512  # nodes; a graph up to this size is one dense matrix of walks
PANEL = 1 << 20  # bytes of one group of small graphs: what the caches of a core hold
MEMORY = 256 << 20  # bytes that the walks of a block of start nodes may take
WIDTH = 256  # start nodes of a block: of fewer, calls take most of the time
EDGE_WIDTH = 64  # likewise where entries of edges are read
DENSE = 0.05  # filled entries above which a product with a dense matrix is the faster one
DENSE_SIZES = range(64, 4097)  # nodes; of fewer, the overhead of a product decides; of more, memory
RANGE = r"\s*(?:range\(\s*(\d{1,4})\s*(?:,\s*(\d{1,4})\s*)?\)\s*)?"  # or nothing
MAX_TIMES = 10_000  # far more steps than any walk needs; each is a column of the encoding


@dataclass(frozen=True, kw_only=True)
class Times:
    """Numbers of steps, or diffusion times, or a range such as ``"range(1, 21)"``: the config group ``kernel``."""

    times: Annotated[Sequence[float], Each(Range(0, 1e6))] = ()
    times_func: Annotated[str, Pattern(RANGE, "range(end) or range(start, end), with ends up to 9999")] = ""

    def numbers(self, group: str) -> list[float]:
        """Return the numbers; a `ConfigError` that names the config group of the encoding where there are none."""
        match = re.fullmatch(RANGE, self.times_func)
        ends = [int(number) for number in match.groups() if number] if match else []
        numbers = list(range(*ends)) if ends else list(self.times)
        if not numbers:
            raise ConfigError(f"{group}.kernel: it names no times: set times_func to range(1, 21), or times to a list")
        return numbers


@dataclass(frozen=True, kw_only=True)
class Steps(Times):
    """Numbers of steps of a walk, which are whole."""

    times: Annotated[Sequence[int], Each(whole(0, MAX_TIMES))] = ()


class TimesEncoding(NodeEncoding):
    """Base class of encodings with one column for each number of the group ``kernel``."""

    model: Annotated[str, Registered("of the encoder")] = "none"
    kernel: Times = Times()

    @property
    def num_columns(self) -> int:
        """Return how many numbers there are."""
        return len(self.kernel.numbers(self.group))

    def settings(self) -> dict[str, Any]:
        """Return the numbers."""
        return {"times": self.kernel.numbers(self.group)}


@register("encoding", "RWSE")
class RWSE(TimesEncoding):
    """Return probabilities of random walks."""

    kernel: Steps = Steps()

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the `return_probabilities`, of all graphs at once."""
        edges, sizes = join_graphs(graphs)
        return [{self.attribute: part} for part in return_probabilities(edges, sizes, **settings).split(sizes)]


@register("encoding", "RWSEEdge")
class RWSEEdge(TimesEncoding, EdgeEncoding):
    """Probabilities of random walks from one end of an edge to the other."""

    kernel: Steps = Steps(times_func="range(1, 21)")
    num_global: Annotated[int, NATURAL] = 2  # public, and without influence, as the next
    global_edge_dropout: Annotated[float, FRACTION] = 0.2
    norm: ClassVar[bool] = True

    def attributes(self, graphs: Sequence[Data], settings: Mapping[str, Any]) -> list[dict[str, Tensor]]:
        """Return the `edge_walk_probabilities`, of all graphs at once."""
        edges, sizes = join_graphs(graphs)
        table = edge_walk_probabilities(edges, sum(sizes), **settings)
        return [{self.attribute: part} for part in table.split([graph.num_edges for graph in graphs])]


def join_graphs(graphs: Sequence[Data]) -> tuple[Tensor, list[int]]:
    """Return the edges of graphs one after another, in node numbers of all of them, and the sizes of the graphs."""
    sizes = [graph.num_nodes for graph in graphs]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=False)], dim=1), sizes


def return_probabilities(
    edge_index: Tensor,
    sizes: int | Sequence[int],
    times: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return how likely a random walk along the edges is back at its start after each number of steps.

    A repeated edge counts as often as it occurs. A walk ends at a node without outgoing edges.

    Args:
        edge_index (Tensor): Edges of one graph, or of several graphs one after another, as in a `Batch`.
        sizes (int or Sequence[int]): Number of nodes of each graph; many small graphs at once are faster.
        times (Sequence[int]): Numbers of steps; the columns come in ascending order, as in the public code.
        dtype (dtype, optional): Of the result and of all sums. (default: ``torch.float32``)

    Shapes: edge_index (2, E) -> (N, len(times)).

    Raises:
        InputError: edges that leave their graph.
    """
    times = sorted(map(int, times))
    sizes = np.atleast_1d(np.asarray(sizes, dtype=np.int64))
    edges = edge_index.cpu().numpy().astype(np.int64).reshape(2, -1)
    graph = np.repeat(np.arange(len(sizes)), sizes)
    if edges.size and (edges.min() < 0 or edges.max() >= len(graph) or (graph[edges[0]] != graph[edges[1]]).any()):
        raise InputError(f"edge_index holds an edge outside its graph: {len(sizes)} graphs, {len(graph)} nodes in all")
    order = np.argsort(sizes[graph], kind="stable")  # by size, so that a group of small graphs has little padding
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    adjacency = scipy.sparse.csr_array((np.ones(edges.shape[1]), tuple(rank[edges])), shape=(len(graph),) * 2)
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    values = np.ones((len(graph), len(times)), numpy_dtype)  # 1 is right for no steps at all
    halves = (times[-1] + 1) // 2
    for nodes, diagonals in _walk_parts(adjacency, np.sort(sizes), halves, numpy_dtype):
        for steps, diagonal in enumerate(islice(diagonals, times[-1]), start=1):
            for column in np.flatnonzero(np.equal(times, steps)):
                values[nodes, column] = diagonal
    return torch.from_numpy(values[rank])


def edge_walk_probabilities(
    edge_index: Tensor,
    num_nodes: int,
    times: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return how likely a random walk along the edges, started at i, is at j after each number of steps.

    Args:
        edge_index (Tensor): Edges (i, j) of one graph, or of several graphs one after another, as in a `Batch`.
        num_nodes (int): N.
        times (Sequence[int]): Numbers of steps; the columns come in ascending order.
        dtype (dtype, optional): Of the result and of all sums. (default: ``torch.float32``)

    Shapes: edge_index (2, E) -> (E, len(times)).

    Raises:
        InputError: an edge names a node that does not exist.
    """
    times = sorted(map(int, times))
    source, target = edge_array(edge_index, num_nodes)
    numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
    adjacency = scipy.sparse.csr_array((np.ones(len(source)), (source, target)), shape=(num_nodes,) * 2)
    pattern = (adjacency + adjacency.T).tocsr()
    degree = adjacency.sum(axis=1)
    back = scipy.sparse.diags_array(1 / degree.clip(min=1)) @ adjacency
    back = back.T.tocsr().astype(numpy_dtype)  # P^T: walks are columns
    by_source = source.argsort(kind="stable")
    first = source[by_source].searchsorted(np.arange(num_nodes + 1))
    values = np.zeros((len(source), len(times)), numpy_dtype)
    if not pattern.nnz:
        return torch.from_numpy(values)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(pattern, symmetric_mode=True).astype(np.int64)
    order = order[np.diff(pattern.indptr)[order] > 0]  # neighbours are close in it
    width = int(np.clip(MEMORY // (3 * num_nodes * numpy_dtype.itemsize), 1, EDGE_WIDTH))  # two arrays of walks
    for block in np.split(order, range(width, len(order), width)):
        edges = by_source[_concatenate_rows(first, block)]
        starts = np.repeat(np.arange(len(block)), first[block + 1] - first[block])  # column of each edge's walk
        ball, _ = _nodes_within(pattern, block, max((times[-1] + 1) // 2, 1))
        place = np.empty(num_nodes, np.int64)
        place[ball] = np.arange(len(ball))
        ends, step = place[target[edges]], back[ball][:, ball]
        walks = np.eye(len(ball), len(block), dtype=numpy_dtype)  # (nodes, starts)
        for steps in range(times[-1] + 1):
            for column in np.flatnonzero(np.equal(times, steps)):
                values[edges, column] = walks[ends, starts]
            if steps < times[-1]:
                walks = step @ walks
    return torch.from_numpy(values)


def _walk_parts(
    adjacency: scipy.sparse.csr_array, sizes: Array, halves: int, dtype: np.dtype
) -> Iterator[tuple[Array, Iterator[Array]]]:
    matrices = _transitions(adjacency, dtype)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    graph, num_small = 0, int(np.searchsorted(sizes, SMALL, side="right"))
    while graph < num_small:
        stop = graph + 1
        while stop < num_small and (stop + 1 - graph) * sizes[stop] ** 2 * dtype.itemsize <= PANEL:
            stop += 1
        yield np.arange(starts[graph], starts[stop]), _walk_small_graphs(matrices, starts[graph : stop + 1])
        graph = stop
    if num_small < len(sizes):
        pattern = adjacency if len(matrices) == 1 else (adjacency + adjacency.T).tocsr()
        width = int(np.clip(MEMORY // (4 * adjacency.shape[0] * dtype.itemsize), 1, WIDTH))  # 4: see _iterate_diagonals
        for block in _grow_blocks(pattern, starts[num_small], width):
            yield block, _walk_block(matrices, pattern, block, halves)


def _transitions(adjacency: scipy.sparse.csr_array, dtype: np.dtype) -> list[scipy.sparse.csr_array]:
    """Return [S] for an undirected graph, [P^T, P] for a directed one."""
    degree = adjacency.sum(axis=1)
    inverse = np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)
    if (adjacency != adjacency.T.tocsr()).nnz == 0:
        scale = scipy.sparse.diags_array(np.sqrt(inverse))
        return [(scale @ adjacency @ scale).tocsr().astype(dtype)]
    steps = (scipy.sparse.diags_array(inverse) @ adjacency).tocsr().astype(dtype)
    return [steps.T.tocsr(), steps]


def _iterate_diagonals(steps: list[Step], start: Array) -> Iterator[Array]:
    """Yield the diagonals of P, P^2, ...; at most four arrays of the size of the walks are alive."""
    left = right = start
    for half in count(1):
        ahead = steps[0](left, half)
        yield np.einsum("...ij,...ij->...j", ahead[..., : right.shape[-2], :], right)
        right = ahead if len(steps) == 1 else steps[1](right, half)
        left = ahead
        yield np.einsum("...ij,...ij->...j", left, right)


def _walk_small_graphs(matrices: list[scipy.sparse.csr_array], starts: Array) -> Iterator[Array]:
    """Yield the diagonals of small graphs, whose walks are one array (graphs, nodes, starts)."""
    sizes = np.diff(starts)
    number, largest = len(sizes), sizes[-1]
    local = np.concatenate([np.arange(size) for size in sizes])
    padded = np.repeat(np.arange(number) * largest, sizes) + local
    shape = (number, largest, largest)
    filled = matrices[0].indptr[starts[-1]] - matrices[0].indptr[starts[0]]

    def step(matrix: scipy.sparse.csr_array) -> Step:
        entries = matrix[starts[0] : starts[-1]].tocoo()
        row, column = padded[entries.row], padded[entries.col - starts[0]]
        if largest in DENSE_SIZES and filled > DENSE * np.square(sizes).sum():
            dense = np.zeros((number * largest, largest), matrix.dtype)
            dense[row, column % largest] = entries.data
            return lambda walks, _: np.matmul(dense.reshape(shape), walks)
        sparse = scipy.sparse.csr_array((entries.data, (row, column)), shape=(number * largest,) * 2)
        return lambda walks, _: (sparse @ walks.reshape(number * largest, largest)).reshape(shape)

    start = np.broadcast_to(np.eye(largest, dtype=matrices[0].dtype), shape)
    for diagonal in _iterate_diagonals([step(matrix) for matrix in matrices], start):
        yield diagonal.reshape(-1)[padded]


def _walk_block(
    matrices: list[scipy.sparse.csr_array], pattern: scipy.sparse.csr_array, block: Array, halves: int
) -> Iterator[Array]:
    """Yield the diagonals of the walks that start in a block of nodes, held for the nodes they can have reached."""
    ball, counts = _nodes_within(pattern, block, halves)

    def step(matrix: scipy.sparse.csr_array) -> Step:
        local = matrix[ball][:, ball]
        if len(ball) in DENSE_SIZES and local.nnz > DENSE * len(ball) ** 2:
            local = local.toarray()
        return lambda walks, half: local[: counts[half], : counts[half - 1]] @ walks

    return _iterate_diagonals([step(matrix) for matrix in matrices], np.eye(len(block), dtype=matrices[0].dtype))


def _nodes_within(pattern: scipy.sparse.csr_array, block: Array, hops: int) -> tuple[Array, Array]:
    """Return the nodes within so many hops of a block, nearest first, and how many are within 0, 1, ..., hops."""
    seen = np.zeros(pattern.shape[0], bool)
    seen[block] = True
    reached = [block]
    for _ in range(hops):
        reached.append(_visit_neighbors(pattern, reached[-1], seen))
    return np.concatenate(reached), np.cumsum([len(ring) for ring in reached])


def _grow_blocks(pattern: scipy.sparse.csr_array, first: int, width: int) -> Iterator[Array]:
    """Yield blocks of at most ``width`` nodes that are close together, of the nodes from ``first`` on."""
    seen = np.arange(pattern.shape[0]) < first
    block = np.empty(0, np.int64)
    order = scipy.sparse.csgraph.reverse_cuthill_mckee(pattern, symmetric_mode=True)  # neighbours are close in it
    for seed in order:
        if seen[seed]:
            continue
        seen[seed] = True
        front = np.array([seed])
        while len(front):
            block = np.concatenate([block, front])
            if len(block) == width:
                yield block
                block = block[:0]
                break
            front = _visit_neighbors(pattern, front, seen, width - len(block))
    if len(block):
        yield block


def _visit_neighbors(pattern: scipy.sparse.csr_array, nodes: Array, seen: Array, limit: int | None = None) -> Array:
    """Return neighbours of the nodes that were not seen before, at most ``limit``, and mark them as seen."""
    neighbors = pattern.indices[_concatenate_rows(pattern.indptr, nodes)]
    neighbors = np.unique(neighbors[~seen[neighbors]])[:limit]
    seen[neighbors] = True
    return neighbors


def _concatenate_rows(first: Array, rows: Array) -> Array:
    sizes = (first[rows + 1] - first[rows]).astype(np.int64)
    return np.arange(sizes.sum()) + np.repeat(first[rows] - (np.cumsum(sizes) - sizes), sizes)
