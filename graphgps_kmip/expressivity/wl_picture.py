"""Data of the figures of colour refinement: positions and colours of nodes (thesis figures 3.2, 3.3; paper 5, 6)."""

from __future__ import annotations

from math import cos, pi, sin
from typing import Any

import torch

from graphgps_kmip.expressivity.graph_pairs import bicyclopentyl, decalin
from graphgps_kmip.expressivity.seg_wl import Colouring, Graph, seg_wl, theorem_scheme, undirected, wl
from graphgps_kmip.expressivity.wl_encodings import encode

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
    found = {"before": before, "after": after, "signatures": signatures, "sides": sides}
    return {"graph": _drawn("", graph, places), **found}


def pair() -> dict[str, Any]:
    """Return the colours of two graphs that 1-WL leaves equal, and of SEG-WL with encodings, which separates them."""
    graphs = (decalin(), bicyclopentyl())
    found = {"1-WL": wl(graphs)}
    for name in ("Laplacian eigenvalues", "RWSE"):
        schemes = [theorem_scheme(graph, encode(name, graph)) for graph in graphs]
        found[f"SEG-WL with {name}"] = seg_wl(graphs, schemes)
    drawn = zip(("decalin", "bicyclopentyl"), graphs, (DECALIN, BICYCLOPENTYL), strict=True)
    return {
        "graphs": [_drawn(*one) for one in drawn],
        "tests": [_test(title, colouring) for title, colouring in found.items()],
    }


def _drawn(name: str, graph: Graph, places: Places) -> dict[str, Any]:
    edges = sorted({tuple(sorted(edge)) for edge in graph.edge_index.T.tolist()})
    return {"name": name, "places": places, "edges": edges}


def _test(title: str, colouring: Colouring) -> dict[str, Any]:
    """Return the stable colours: those of different tests are not comparable."""
    colours = [of_graph.tolist() for of_graph in colouring.history[-1]]
    return {"test": title, "separated_after": colouring.separated_after(), "colours": colours}
