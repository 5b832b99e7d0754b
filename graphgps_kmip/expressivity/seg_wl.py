"""Colour refinement of several graphs at once: 1-WL, 2-FWL, SEG-WL with structural encoding schemes, and GD-WL.

SEG-WL: Zhu et al. 2023. 2-FWL is as strong as 3-WL. GD-WL with random walk probabilities (Zhang et al. 2023) bounds
PPGT (proposition E.1). Colours are exact: integers of signatures from a table that all graphs share.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip.encoding.rrwp import RRWP, rrwp
from graphgps_kmip.errors import InputError

DECIMALS = 9  # of GD-WL's probabilities in float64, so that sums in another order stay equal


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes, edges (source, target) and their features; with both directions of an undirected edge."""

    num_nodes: int
    edge_index: Tensor  # edges (2, E); a repeated one counts twice
    x: Tensor | None = None  # features of nodes (N, F), or None: all alike
    edge_attr: Tensor | None = None  # features of edges (E, F), or None: all alike

    def permuted(self, order: Tensor) -> Graph:
        """Return the same graph with its nodes in another order, old node ``order[i]`` as node i."""
        place = order.argsort()
        return replace(self, edge_index=place[self.edge_index], x=None if self.x is None else self.x[order])

    def with_features(self, x: Tensor | None = None, edge_attr: Tensor | None = None) -> Graph:
        """Return the graph with other features; None keeps those that it has."""
        return replace(self, x=self.x if x is None else x, edge_attr=self.edge_attr if edge_attr is None else edge_attr)


def directed(edges: Iterable[tuple[int, int]], num_nodes: int) -> Graph:
    """Return the graph of these edges, from the first node to the second."""
    return Graph(num_nodes, torch.tensor(list(edges), dtype=torch.long).reshape(-1, 2).T)


def undirected(edges: Iterable[tuple[int, int]], num_nodes: int) -> Graph:
    """Return the graph of these edges, each in both directions."""
    edges = list(edges)
    return directed(edges + [(b, a) for a, b in edges], num_nodes)


def cycle(num_nodes: int) -> Graph:
    """Return one cycle of N >= 3 nodes."""
    return undirected([(node, (node + 1) % num_nodes) for node in range(num_nodes)], num_nodes)


def circulant(num_nodes: int, steps: Iterable[int]) -> Graph:
    """Return the graph where node i is linked to i + s, around the circle, for every step s < N / 2."""
    return undirected([(node, (node + step) % num_nodes) for step in steps for node in range(num_nodes)], num_nodes)


def union(*graphs: Graph) -> Graph:
    """Return the graphs without features side by side, as one graph."""
    edges, size = [], 0
    for graph in graphs:
        edges.append(graph.edge_index + size)
        size += graph.num_nodes
    return Graph(size, torch.cat(edges, dim=1))


Value = tuple[float, ...]

# Added before rounding, in units of the last decimal. Encodings often have fractions such as 27/512 = 0.052734375,
# exactly between two decimals, where rounding depends on the last bit; no fraction is at an irrational place.
SHIFT = 1 / math.pi


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a model adds to the features of one graph."""

    node: Tensor | None = None  # nu(A) (N, d), added to features of nodes, or None
    edge: Tensor | None = None  # mu(A) (E, d), added to features of edges, or None
    # of all pairs (N, N, d), the attending node first: what a biased attention reads; or None
    pair: Tensor | None = None


@dataclass(frozen=True)
class Scheme:
    """The values of a structural encoding scheme on one graph."""

    node: Sequence[Hashable]  # f_A(v, G) of every node
    pair: Sequence[Sequence[Hashable]]  # f_R(v, u, G), row v, column u: what v sees of u


def theorem_scheme(graph: Graph, encoding: Encoding | None = None) -> Scheme:
    """Return the scheme of the theorem on GPS models (k-MIP paper, theorem 1, equations 3 and 4; thesis theorem 12).

    ``f_A(v) = nu(A)_v``; ``f_R(v, u) = ([edge u -> v], [u = v], E_uv, mu(A)_uv)``; without an edge the last two are
    empty, of repeated edges they are multisets. ``encoding.pair``, which the theorem lacks, joins ``f_R`` of all pairs.
    """
    encoding, size, count = encoding or Encoding(), graph.num_nodes, graph.edge_index.size(1)
    features = values(graph.edge_attr, count, "edge_attr")
    added = values(encoding.edge, count, "the encoding of edges")
    edges: list[list[list[Hashable]]] = [[[] for _ in range(size)] for _ in range(size)]
    for edge, (source, target) in enumerate(graph.edge_index.T.tolist()):
        edges[target][source].append((features[edge], added[edge]))
    every = None if encoding.pair is None else encoding.pair.flatten(0, 1)
    extra = values(every, size * size, "the encoding of pairs")
    pair = [
        [(bool(edges[v][u]), u == v, tuple(sorted(edges[v][u])), extra[v * size + u]) for u in range(size)]
        for v in range(size)
    ]
    return Scheme(values(encoding.node, size, "the encoding of nodes"), pair)


def values(rows: Tensor | None, count: int, what: str) -> list[Value]:
    """Return rows as tuples of Python numbers, which are compared exactly and by value: -0.0 equals 0.0, 1 equals 1.0.

    Args:
        rows: (count, d) or (count,); None: empty rows.
        count: number of rows.
        what: their name, for errors.
    """
    if rows is None:
        return [()] * count
    if len(rows) != count:
        raise InputError(f"{what} has {len(rows)} rows, expected {count}")
    if rows.is_floating_point() and bool(torch.isnan(rows).any()):
        raise InputError(f"{what} holds NaN, which equals nothing: fill it first, for example with 0")
    return [tuple(row) for row in (rows[:, None] if rows.dim() == 1 else rows.flatten(1)).tolist()]


def rounded(encoding: Encoding, decimals: int) -> Encoding:
    """Return the encoding with floats rounded (see `SHIFT`): what differs only by the order of additions is equal."""
    shift = SHIFT / 10**decimals
    parts = (encoding.node, encoding.edge, encoding.pair)
    return Encoding(*(None if part is None else (part.double() + shift).round(decimals=decimals) for part in parts))


Colours = tuple[np.ndarray, ...]  # of each graph (N,)


def new_table() -> defaultdict[Hashable, int]:
    """Return a table from signatures to colours, in which a new signature gets the next integer."""
    return defaultdict(itertools.count().__next__)


@dataclass(frozen=True)
class Colouring:
    """Colours of several graphs, round by round."""

    # colours (N,) of each graph before any round, after one, ...; comparable within a round
    history: tuple[Colours, ...]
    stable: bool  # no further round refines the colours

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.history) - 1

    def multiset(self, graph: int, after: int = -1) -> Counter[int]:
        """Return the counts of colours in a graph after a number of rounds, by default the last one."""
        return Counter(self.history[after][graph].tolist())

    def separated_after(self, first: int = 0, second: int = 1) -> int | None:
        """Return the first round after which two graphs have different multisets of colours, None: they never have."""
        rounds = range(len(self.history))
        return next((after for after in rounds if self.multiset(first, after) != self.multiset(second, after)), None)


def wl(graphs: Sequence[Graph], rounds: int | None = None, until_separated: bool = False) -> Colouring:
    r"""Colour nodes by the Weisfeiler-Lehman test (1-WL; k-MIP paper, definition 4), with features of nodes and edges.

    .. math:: c^0(v) = x_v, \qquad c^l(v) = (c^{l-1}(v), \{\{(c^{l-1}(u), e_{uv}) : u \to v\}\})

    Costs E log E per round. For ``rounds`` and ``until_separated`` see `refined`.
    """
    kinds = new_table()
    incoming = []  # of each graph and node: (source, kind of the edge)
    for graph in graphs:
        edges: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_nodes)]
        features = values(graph.edge_attr, graph.edge_index.size(1), "edge_attr")
        for (source, target), feature in zip(graph.edge_index.T.tolist(), features, strict=True):
            edges[target].append((source, kinds[feature]))
        incoming.append(edges)

    def signatures(graph: int, colours: np.ndarray) -> Iterator[Hashable]:
        old = colours.tolist()
        for node, edges in enumerate(incoming[graph]):
            yield old[node], tuple(sorted((old[source], kind) for source, kind in edges))

    first = [values(graph.x, graph.num_nodes, "x") for graph in graphs]
    return refined(first, signatures, rounds, until_separated)


def seg_wl(graphs: Sequence[Graph], schemes: Sequence[Scheme], rounds: int | None = None) -> Colouring:
    r"""Colour nodes by the S-SEG-WL test (Zhu et al. 2023; k-MIP paper, definition 7): every node sees all nodes.

    .. math:: c^0(v) = (x_v, f_A(v)), \qquad c^l(v) = \{\{(c^{l-1}(u), f_R(v, u)) : u \in V\}\}

    Costs N^2 log N per round. For schemes see `theorem_scheme`, for ``rounds`` see `refined`.
    """
    kinds = new_table()
    pairs = [np.array([[kinds[value] for value in row] for row in s.pair], dtype=np.int64) for s in schemes]

    def signatures(graph: int, colours: np.ndarray) -> Iterator[Hashable]:
        seen = colours.astype(np.int64)[None, :] * len(kinds) + pairs[graph]  # (N, N), one integer for (colour, f_R)
        seen.sort(axis=1)
        return (row.tobytes() for row in seen)

    first = [
        list(zip(values(graph.x, graph.num_nodes, "x"), scheme.node, strict=True))
        for graph, scheme in zip(graphs, schemes, strict=True)
    ]
    return refined(first, signatures, rounds)


def refined(
    first: Sequence[Sequence[Hashable]],
    signatures: Callable[[int, np.ndarray], Iterator[Hashable]],
    rounds: int | None,
    until_separated: bool = False,
) -> Colouring:
    """Refine colours round by round; they are numbered in order of appearance, so equal partitions have equal colours.

    Args:
        first: of each graph the signatures of its nodes (or pairs of nodes) before any round.
        signatures: number of a graph, its colours -> the signature of each of its nodes after one more round.
        rounds: how many; None: until the colours are stable.
        until_separated: end after the first round in which the first two graphs have different multisets of colours.
    """
    history = [_number_signatures(first)]
    while rounds is None or len(history) <= rounds:
        if until_separated and not np.array_equal(*(np.sort(colours) for colours in history[-1][:2])):
            return Colouring(tuple(history), stable=False)
        new = _number_signatures([signatures(graph, colours) for graph, colours in enumerate(history[-1])])
        if rounds is None and any(_are_equal(new, old) for old in history):
            return Colouring(tuple(history), stable=True)
        history.append(new)
    return Colouring(tuple(history), stable=len(history) > 1 and _are_equal(*history[-2:]))


def _number_signatures(signatures: Sequence[Sequence[Hashable] | Iterator[Hashable]]) -> Colours:
    table = new_table()
    return tuple(np.array([table[key] for key in keys], dtype=np.int64) for keys in signatures)


def _are_equal(first: Colours, second: Colours) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def folklore_wl(graphs: Sequence[Graph], rounds: int | None = None, until_separated: bool = False) -> Colouring:
    r"""Colour ordered pairs of nodes by the folklore 2-WL test (Cai, Fuerer and Immerman 1992), as strong as 3-WL.

    .. math:: c^l(i, j) = (c^{l-1}(i, j), \{\{(c^{l-1}(i, k), c^{l-1}(k, j)) : k \in V\}\})

    The first colour is of whether i is j, the features of both, and the edges between them in both directions. Colours
    are (N * N,), pair (i, j) at i N + j; costs N^3 log N per round. For ``rounds`` see `refined`.
    """

    def signatures(graph: int, colours: np.ndarray) -> Iterator[Hashable]:
        size = graphs[graph].num_nodes
        colour = colours.reshape(size, size)
        number = max(size, *(int(other.num_nodes) for other in graphs)) ** 2 * len(graphs)  # colours are below it
        kind = np.int32 if number**2 < 2**31 else np.int64
        into = np.ascontiguousarray(colour.T).astype(kind)  # [j, k] = c(k, j)
        for first in range(size):
            seen = into + colour[first].astype(kind)[None, :] * kind(number)  # [j, k]: (c(i, k), c(k, j)) as one number
            seen.sort(axis=1)
            yield from zip(colour[first].tolist(), (row.tobytes() for row in seen), strict=True)

    return refined([_get_pair_types(graph) for graph in graphs], signatures, rounds, until_separated)


def _get_pair_types(graph: Graph) -> list[Hashable]:
    """Return the first signatures of ordered pairs of nodes."""
    size = graph.num_nodes
    nodes = values(graph.x, size, "x")
    features = values(graph.edge_attr, graph.edge_index.size(1), "edge_attr")
    edges: dict[tuple[int, int], list[Hashable]] = defaultdict(list)
    for (source, target), feature in zip(graph.edge_index.T.tolist(), features, strict=True):
        edges[source, target].append(feature)
    between = {link: tuple(sorted(kinds)) for link, kinds in edges.items()}
    return [
        (i == j, nodes[i], nodes[j], between.get((i, j), ()), between.get((j, i), ()))
        for i in range(size)
        for j in range(size)
    ]


# Name in tables -> colouring of graphs.
TESTS: dict[str, Callable[..., Colouring]] = {"1-WL": wl, "3-WL": folklore_wl}


def separated_by(test: str, first: Graph, second: Graph) -> int | None:
    """Return the number of rounds after which a test of `TESTS` separates two graphs, None: it never does."""
    return TESTS[test]((first, second), until_separated=True).separated_after()


def gd_wl(graphs: Sequence[Graph], walks: RRWP, rounds: int | None = None) -> Colouring:
    r"""Colour nodes by GD-WL with d(v, u) = (I, M, M^2, ...)_vu, rounded to `DECIMALS` decimals.

    .. math:: c^0(v) = x_v, \qquad c^l(v) = \{\{(c^{l-1}(u), d(v, u)) : u \in V\}\}

    Args:
        graphs (sequence of Graph): Without features of edges.
        walks (RRWP): Which probabilities; float64.
        rounds (int, optional): How many; None: until the colours are stable. (default: ``None``)
    """
    if any(graph.edge_attr is not None for graph in graphs):
        raise InputError("GD-WL reads no features of edges: leave edge_attr out")
    if walks.dtype is not torch.float64:
        raise InputError(f"GD-WL compares probabilities exactly: set precision float64, got {walks.precision}")
    schemes = []
    for graph in graphs:
        size = graph.num_nodes
        pair = rounded(Encoding(pair=rrwp(graph.edge_index, size, walks).view(size, size, -1)), DECIMALS).pair
        distances = values(pair.flatten(0, 1), size * size, "the distance")
        schemes.append(Scheme([()] * size, [distances[v * size : (v + 1) * size] for v in range(size)]))
    return seg_wl(graphs, schemes, rounds)
