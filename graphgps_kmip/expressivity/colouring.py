"""Colour refinement of several graphs at once: 1-WL, and SEG-WL with structural encodings (Zhu et al. 2023).

Exact: a colour is an integer that stands for one signature, looked up in a table that all graphs share (hash-consing),
not a hash that may collide. Numbers count by value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from graphgps_kmip.expressivity.graph import Graph
from graphgps_kmip.expressivity.seg_wl import Scheme, values

Colours = tuple[np.ndarray, ...]  # of each graph (N,)


class Table(dict):
    """Signature -> colour; a new signature gets the next integer."""

    def __missing__(self, signature: Hashable) -> int:
        self[signature] = len(self)
        return self[signature]


@dataclass(frozen=True)
class Colouring:
    """Colours of several graphs, round by round.

    Args:
        history: colours before any round, after one round, ...: of each graph (N,). Colours of one round are comparable
            between graphs, those of different rounds are not.
        stable: no further round tells more.
    """

    history: tuple[Colours, ...]
    stable: bool

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.history) - 1

    def multiset(self, graph: int, after: int = -1) -> Counter[int]:
        """Return how often each colour stands in a graph after a number of rounds, -1: the last one."""
        return Counter(self.history[after][graph].tolist())

    def separated_after(self, first: int = 0, second: int = 1) -> int | None:
        """Return the first round after which two graphs have different multisets of colours, None: they never have."""
        rounds = range(len(self.history))
        return next((after for after in rounds if self.multiset(first, after) != self.multiset(second, after)), None)


def wl(graphs: Sequence[Graph], rounds: int | None = None) -> Colouring:
    r"""Colour nodes by the Weisfeiler-Lehman test (1-WL; k-MIP paper, definition 4), with features of nodes and edges.

    .. math:: c^0(v) = x_v, \qquad c^l(v) = (c^{l-1}(v), \{\{(c^{l-1}(u), e_{uv}) : u \to v\}\})

    Costs E log E a round.

    Args:
        graphs: compared with each other.
        rounds: how many; None: until the colours are stable.

    Raises:
        ValueError: a feature is NaN.
    """
    kinds = Table()
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

    return _refined([values(graph.x, graph.num_nodes, "x") for graph in graphs], signatures, rounds)


def seg_wl(graphs: Sequence[Graph], schemes: Sequence[Scheme], rounds: int | None = None) -> Colouring:
    r"""Colour nodes by the S-SEG-WL test (Zhu et al. 2023; k-MIP paper, definition 7): every node sees all nodes.

    .. math:: c^0(v) = (x_v, f_A(v)), \qquad c^l(v) = \{\{(c^{l-1}(u), f_R(v, u)) : u \in V\}\}

    A node's own colour is in there, and known as its own where f_R tells it. Costs N^2 log N a round.

    Args:
        graphs: compared with each other.
        schemes: of each graph, see `theorem_scheme`.
        rounds: how many; None: until the colours are stable.

    Raises:
        ValueError: a feature is NaN.
    """
    kinds = Table()
    pairs = [np.array([[kinds[value] for value in row] for row in s.pair], dtype=np.int64) for s in schemes]

    def signatures(graph: int, colours: np.ndarray) -> Iterator[Hashable]:
        seen = colours.astype(np.int64)[None, :] * len(kinds) + pairs[graph]  # (N, N), one integer for (colour, f_R)
        seen.sort(axis=1)
        return (row.tobytes() for row in seen)

    first = [
        list(zip(values(graph.x, graph.num_nodes, "x"), scheme.node, strict=True))
        for graph, scheme in zip(graphs, schemes, strict=True)
    ]
    return _refined(first, signatures, rounds)


def _refined(
    first: Sequence[Sequence[Hashable]],
    signatures: Callable[[int, np.ndarray], Iterator[Hashable]],
    rounds: int | None,
) -> Colouring:
    """Refine until the partition of all nodes of all graphs has been there before, or for some rounds.

    Colours are numbered as they first stand there, so equal partitions have equal colours.
    """
    history = [_coloured(first)]
    while rounds is None or len(history) <= rounds:
        new = _coloured([signatures(graph, colours) for graph, colours in enumerate(history[-1])])
        if rounds is None and any(_same(new, old) for old in history):
            return Colouring(tuple(history), stable=True)
        history.append(new)
    return Colouring(tuple(history), stable=len(history) > 1 and _same(*history[-2:]))


def _coloured(signatures: Sequence[Sequence[Hashable] | Iterator[Hashable]]) -> Colours:
    table = Table()
    return tuple(np.array([table[one] for one in of_graph], dtype=np.int64) for of_graph in signatures)


def _same(one: Colours, other: Colours) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
