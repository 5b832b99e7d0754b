"""Colour refinement of pairs of nodes: 2-FWL, as strong as 3-WL, and which pairs of graphs 1-WL and 3-WL tell apart.

Exact, as `seg_wl`: a colour is an integer for one signature, looked up in a table that the graphs share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np

from graphgps_kmip.expressivity.seg_wl import Colouring, Graph, refined, values, wl


def folklore_wl(graphs: Sequence[Graph], rounds: int | None = None, until_separated: bool = False) -> Colouring:
    r"""Colour ordered pairs of nodes by the folklore 2-WL test (Cai, Fuerer and Immerman 1992), as strong as 3-WL.

    .. math:: c^l(i, j) = (c^{l-1}(i, j), \{\{(c^{l-1}(i, k), c^{l-1}(k, j)) : k \in V\}\})

    The first colour says whether i is j, the features of both, and the edges between them in both directions.

    Args:
        graphs (Sequence[Graph]): Compared with each other.
        rounds (int, optional): How many. (default: until the colours are stable)
        until_separated (bool, optional): End after the first round in which the first two graphs have different
            multisets of colours. (default: ``False``)

    Shapes: colours of a graph (N * N,), pair (i, j) at i N + j.

    Cost: N^3 log N time a round, and up to N^3 numbers of memory for the table of new signatures.

    Raises:
        ValueError: a feature is NaN.
    """

    def signatures(graph: int, colours: np.ndarray) -> Iterator[Hashable]:
        size = graphs[graph].num_nodes
        colour = colours.reshape(size, size)
        number = max(size, *(int(one.num_nodes) for one in graphs)) ** 2 * len(graphs)  # colours are below it
        kind = np.int32 if number**2 < 2**31 else np.int64
        into = np.ascontiguousarray(colour.T).astype(kind)  # [j, k] = c(k, j)
        for first in range(size):
            seen = into + colour[first].astype(kind)[None, :] * kind(number)  # [j, k]: (c(i, k), c(k, j)) as one number
            seen.sort(axis=1)
            yield from zip(colour[first].tolist(), (row.tobytes() for row in seen), strict=True)

    return refined([_pair_types(graph) for graph in graphs], signatures, rounds, until_separated)


def _pair_types(graph: Graph) -> list[Hashable]:
    """Return what an ordered pair of nodes is before any round: an isomorphism type of two nodes."""
    size = graph.num_nodes
    nodes = values(graph.x, size, "x")
    features = values(graph.edge_attr, graph.edge_index.size(1), "edge_attr")
    edges: dict[tuple[int, int], list[Hashable]] = defaultdict(list)
    for (source, target), feature in zip(graph.edge_index.T.tolist(), features, strict=True):
        edges[source, target].append(feature)
    between = {ends: tuple(sorted(found)) for ends, found in edges.items()}
    return [
        (i == j, nodes[i], nodes[j], between.get((i, j), ()), between.get((j, i), ()))
        for i in range(size)
        for j in range(size)
    ]


def _one_wl(graphs: Sequence[Graph]) -> Colouring:
    return wl(graphs, until_separated=True)


def _three_wl(graphs: Sequence[Graph]) -> Colouring:
    return folklore_wl(graphs, until_separated=True)


# Name in tables -> colouring of two graphs, up to the round that separates them.
TESTS: dict[str, Callable[[Sequence[Graph]], Colouring]] = {"1-WL": _one_wl, "3-WL": _three_wl}


def separated_by(test: str, first: Graph, second: Graph) -> int | None:
    """Return the number of rounds after which a test separates two graphs, None: it never does.

    Args:
        test (str): A key of `TESTS`.
        first (Graph): One graph.
        second (Graph): The other.
    """
    return TESTS[test]((first, second)).separated_after()
