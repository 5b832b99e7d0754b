"""Figures of colour refinement (thesis 3.2, 3.3; paper 5, 6), and encodings for SEG-WL by name.

Encodings are computed in floating point: nodes that the mathematics makes alike get values that differ in the last
digits. So all values are rounded to `DECIMALS` decimals (see `rounded` for what that leaves open).
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, sin
from typing import Any

import torch
from torch import Tensor

from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from graphgps_kmip.encoding.random_walk import return_probabilities
from graphgps_kmip.expressivity.seg_wl import (
    Colouring,
    Encoding,
    Graph,
    rounded,
    seg_wl,
    theorem_scheme,
    undirected,
    wl,
)
from graphgps_kmip.expressivity.theorem import bicyclopentyl, decalin

DECIMALS = 8  # eigenvectors of such small graphs are right to 12 or more
SAME = 1e-8  # eigenvalues that are nearer are one eigenvalue
STEPS = range(1, 17)  # of random walks, as GraphGPS has them on ZINC
MAX_FREQS = 8  # eigenpairs, of the public configs


def encode(name: str, graph: Graph, decimals: int = DECIMALS) -> Encoding:
    """Return a row of `ENCODINGS` of a graph, rounded."""
    return rounded(ENCODINGS[name](graph), decimals)


def _eigenpairs(graph: Graph, count: int) -> tuple[Tensor, Tensor]:
    return laplacian_eigenpairs(graph.edge_index, graph.num_nodes, count, "sym", "L2")


def _eigenvalues(graph: Graph) -> Encoding:
    """Give every node all eigenvalues of its graph."""
    eigenvalues, _ = _eigenpairs(graph, graph.num_nodes)
    return Encoding(node=eigenvalues.expand(graph.num_nodes, -1))


def _eigenspaces(graph: Graph) -> Encoding:
    r"""Give what eigenvectors tell whatever their signs and bases: projections :math:`P_\lambda = U U^T`.

    Of every distinct eigenvalue :math:`\lambda` node v gets :math:`\lambda, P_\lambda(v, v)`, and edge (u, v)
    :math:`P_\lambda(u, v)`.
    """
    eigenvalues, vectors = _eigenpairs(graph, graph.num_nodes)
    space = torch.cat([eigenvalues.new_zeros(1, dtype=torch.bool), eigenvalues.diff() > SAME]).cumsum(
        0
    )  # (N,), of each vector
    source, target = graph.edge_index
    nodes, edges = [], []
    for number in range(int(space.max()) + 1):
        inside = vectors[:, space == number]
        value = eigenvalues[space == number].mean()
        nodes += [value.expand(graph.num_nodes), inside.square().sum(1)]
        edges.append((inside[source] * inside[target]).sum(1))
    return Encoding(node=torch.stack(nodes, 1), edge=torch.stack(edges, 1))


def _eigenvectors(graph: Graph) -> Encoding:
    """Give what LapPE starts from: entries of the first eigenvectors and their eigenvalues, as the solver finds them.

    Signs, and the basis where an eigenvalue repeats, are the solver's choice and depend on the order of the nodes.
    """
    eigenvalues, vectors = _eigenpairs(graph, MAX_FREQS)
    both = torch.stack([eigenvalues.expand_as(vectors), vectors], dim=2)  # (N, K, 2)
    return Encoding(node=both.flatten(1).nan_to_num(0.0))


def hops(graph: Graph) -> Encoding:
    """Give every pair of nodes the length of the shortest path, -1 where there is none: Graphormer's encoding."""
    count = graph.num_nodes
    linked = torch.zeros(count, count, dtype=torch.bool)
    linked[graph.edge_index[1], graph.edge_index[0]] = True  # row: the node that is reached
    length, reached = torch.full((count, count), -1), torch.eye(count, dtype=torch.bool)
    for steps in range(count):
        length[reached & (length < 0)] = steps
        reached = (reached.double() @ linked.mT.double()) > 0
    return Encoding(pair=length.mT[..., None])


ENCODINGS: dict[str, Callable[[Graph], Encoding]] = {
    "none": lambda graph: Encoding(),  # noqa: ARG005
    "RWSE": lambda graph: Encoding(return_probabilities(graph.edge_index, graph.num_nodes, STEPS, dtype=torch.float64)),
    "Laplacian eigenvalues": _eigenvalues,
    "Laplacian eigenspaces": _eigenspaces,
    "shortest paths": hops,  # of all pairs: what no GPS model reads
    "Laplacian eigenvectors": _eigenvectors,
}
INVARIANT = tuple(name for name in ENCODINGS if name != "Laplacian eigenvectors")  # alike for isomorphic graphs


Places = list[tuple[float, float]]

HALF = [(-0.87, 1.0), (-1.73, 0.5), (-1.73, -0.5), (-0.87, -1.0)]  # of two hexagons that share the edge on x = 0
DECALIN: Places = [(0.0, 0.5), *HALF, (0.0, -0.5), *[(-x, y) for x, y in reversed(HALF)]]


def _pentagon(center: float, first: float) -> Places:
    return [(center + cos(first + 0.4 * pi * node), sin(first + 0.4 * pi * node)) for node in range(5)]


BICYCLOPENTYL: Places = [*_pentagon(-1.6, 0.0), *_pentagon(1.6, pi)]


def iteration() -> dict[str, Any]:
    """Return one round of 1-WL on a small graph: its colours before and after, and the signature of every node."""
    graph = undirected([(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 5)], 6)
    graph = graph.with_features(x=torch.tensor([[0], [0], [0], [1], [0], [0]]))
    before, after = (colours[0].tolist() for colours in wl([graph], rounds=1).history)
    near: list[list[int]] = [[] for _ in before]
    for source, target in graph.edge_index.T.tolist():
        near[target].append(before[source])
    signatures = [f"({own}, {{{', '.join(map(str, sorted(seen)))}}})" for own, seen in zip(before, near, strict=True)]
    places = [(-1.7, 0.85), (-1.7, -0.85), (-0.3, 0.0), (1.2, 0.0), (2.6, 0.85), (2.6, -0.85)]
    sides = [(0, 1), (0, -1), (1, 1), (-1, -1), (0, 1), (0, -1)]  # where the signature has room
    colours = {"before": before, "after": after, "signatures": signatures, "sides": sides}
    return {"graph": _draw("", graph, places), **colours}


def pair() -> dict[str, Any]:
    """Return the colours of two graphs that 1-WL leaves equal, and of SEG-WL with encodings, which separates them."""
    graphs = (decalin(), bicyclopentyl())
    colourings = {"1-WL": wl(graphs)}
    for name in ("Laplacian eigenvalues", "RWSE"):
        schemes = [theorem_scheme(graph, encode(name, graph)) for graph in graphs]
        colourings[f"SEG-WL with {name}"] = seg_wl(graphs, schemes)
    drawn = zip(("decalin", "bicyclopentyl"), graphs, (DECALIN, BICYCLOPENTYL), strict=True)
    return {
        "graphs": [_draw(*row) for row in drawn],
        "tests": [_test(title, colouring) for title, colouring in colourings.items()],
    }


def _draw(name: str, graph: Graph, places: Places) -> dict[str, Any]:
    edges = sorted({tuple(sorted(edge)) for edge in graph.edge_index.T.tolist()})
    return {"name": name, "places": places, "edges": edges}


def _test(title: str, colouring: Colouring) -> dict[str, Any]:
    """Return the stable colours: those of different tests are not comparable."""
    colours = [of_graph.tolist() for of_graph in colouring.history[-1]]
    return {"test": title, "separated_after": colouring.separated_after(), "colours": colours}
