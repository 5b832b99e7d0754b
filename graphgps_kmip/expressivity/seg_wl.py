"""Structural encoding schemes S = (f_A, f_R): what SEG-WL is told of nodes and of pairs (Zhu et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphgps_kmip.errors import InputError
from graphgps_kmip.expressivity.graph import Graph

Value = tuple[float, ...]

# Added before rounding, in units of the last decimal. Encodings love fractions such as 27/512 = 0.052734375, which lie
# right between two decimals, where rounding follows the last bit; no fraction lies at an irrational place.
SHIFT = 1 / math.pi


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a model adds to the features of one graph.

    Args:
        node: nu(A), added to features of nodes, or None.
        edge: mu(A), added to features of edges, or None.
        pair: of all pairs, the attending node first: what a biased attention reads, and no GPS model; or None.

    Shapes: node (N, d), edge (E, d), pair (N, N, d).
    """

    node: Tensor | None = None
    edge: Tensor | None = None
    pair: Tensor | None = None


@dataclass(frozen=True)
class Scheme:
    """The values of a structural encoding scheme on one graph.

    Args:
        node: f_A(v, G) of every node.
        pair: f_R(v, u, G), row v, column u: what v is told of u.
    """

    node: Sequence[Hashable]
    pair: Sequence[Sequence[Hashable]]


def theorem_scheme(graph: Graph, encoding: Encoding | None = None) -> Scheme:
    """Return the scheme of the theorem on GPS models (k-MIP paper, theorem 1, equations 3 and 4; thesis theorem 12).

    ``f_A(v) = nu(A)_v``; ``f_R(v, u) = ([edge u -> v], [u = v], E_uv, mu(A)_uv)``, and where there is no edge the two
    last ones are empty. Of edges that stand there several times, it holds the multiset. ``encoding.pair``, which the
    theorem does not have, joins ``f_R`` of all pairs.

    Raises:
        ValueError: an encoding is NaN, or is not of this graph's nodes and edges.
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


def constant_scheme(graph: Graph) -> Scheme:
    """Return the scheme that makes SEG-WL the 1-WL test of graphs without features (paper, equations 5 and 6).

    It does not tell a node which one it is itself (it is not strongly regular), so with features of nodes SEG-WL sees
    less with it than 1-WL does.
    """
    linked = [[False] * graph.num_nodes for _ in range(graph.num_nodes)]
    for source, target in graph.edge_index.T.tolist():
        linked[target][source] = True
    return Scheme([()] * graph.num_nodes, linked)


def values(rows: Tensor | None, count: int, what: str) -> list[Value]:
    """Return rows as tuples of Python numbers, which are compared exactly and by value: -0.0 equals 0.0, 1 equals 1.0.

    Args:
        rows: (count, d) or (count,); None: rows of nothing.
        count: number of rows that are wanted.
        what: their name, for errors.

    Raises:
        ValueError: another number of rows, or a NaN, which equals nothing, not even itself.
    """
    if rows is None:
        return [()] * count
    if len(rows) != count:
        raise InputError(f"{what} has {len(rows)} rows, expected {count}")
    if rows.is_floating_point() and bool(torch.isnan(rows).any()):
        raise InputError(f"{what} holds NaN, which equals nothing: fill it first, for example with 0")
    return [tuple(row) for row in (rows[:, None] if rows.dim() == 1 else rows.flatten(1)).tolist()]


def rounded(encoding: Encoding, decimals: int) -> Encoding:
    """Return the encoding with floats rounded: what differs only by the order of additions becomes equal.

    Two values on either side of a boundary stay different, however near they are. The boundaries lie at odd places
    (see `SHIFT`); a value moves by less than one unit of the last decimal.
    """
    shift = SHIFT / 10**decimals
    parts = (encoding.node, encoding.edge, encoding.pair)
    return Encoding(*(None if part is None else (part.double() + shift).round(decimals=decimals) for part in parts))
