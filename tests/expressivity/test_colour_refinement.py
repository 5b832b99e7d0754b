"""2-FWL (3-WL): what it separates and what it leaves equal, against a naive reference, and on published pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.expressivity.seg_wl import Graph, cycle, directed, folklore_wl, separated_by, undirected, union, wl
from tests.data.sets.brec_pairs import BASIC, CFI, EXTENSION, SIMPLE_REGULAR, STRONGLY_REGULAR, brec_pairs


def rook() -> Graph:
    """4 x 4 rook's graph: strongly regular (16, 6, 2, 2)."""
    edges = [(a, b) for a in range(16) for b in range(a) if (a // 4 == b // 4) != (a % 4 == b % 4)]
    return undirected(edges, 16)


def shrikhande() -> Graph:
    """Cayley graph of Z_4 x Z_4 with +-(1, 0), +-(0, 1), +-(1, 1): strongly regular with the same parameters."""
    steps = ((1, 0), (0, 1), (1, 1))
    edges = [
        (4 * row + column, 4 * ((row + a) % 4) + (column + b) % 4)
        for row in range(4)
        for column in range(4)
        for a, b in steps
    ]
    return undirected(edges, 16)


def naive_colours(graphs: list[Graph], rounds: int) -> list[Counter[Hashable]]:
    """Return the multisets of 2-FWL colours, each colour the nested tuple that it stands for."""
    colours = []
    for graph in graphs:
        edges = Counter(map(tuple, graph.edge_index.T.tolist()))
        nodes = range(graph.num_nodes)
        colours.append({(i, j): (i == j, edges[i, j], edges[j, i]) for i in nodes for j in nodes})
    for _ in range(rounds):
        new = []
        for graph, old in zip(graphs, colours, strict=True):
            nodes = range(graph.num_nodes)
            new.append({(i, j): (old[i, j], tuple(sorted((old[i, k], old[k, j]) for k in nodes))) for i, j in old})
        colours = new
    return [Counter(one.values()) for one in colours]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans())
def test_colours_are_those_of_the_definition(seed: int, size: int, both_ways: bool) -> None:
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(2):
        pairs = [(a, b) for a in range(size) for b in range(size) if a != b and rng.random() < 0.4]
        graphs.append((undirected if both_ways else directed)(pairs, size))
    found = folklore_wl(graphs, rounds=2)
    for after in range(3):
        ours = [found.multiset(graph, after) for graph in (0, 1)]
        naive = naive_colours(graphs, after)
        assert (ours[0] == ours[1]) == (naive[0] == naive[1])
        for mine, theirs in zip(ours, naive, strict=True):
            assert sorted(mine.values()) == sorted(theirs.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_order_of_nodes_changes_nothing_and_what_1wl_separates_is_separated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    graphs = [undirected([(a, b) for a in range(size) for b in range(a) if rng.random() < 0.5], size) for _ in range(2)]
    order = torch.from_numpy(rng.permutation(size))
    assert folklore_wl([graphs[0], graphs[0].permuted(order)]).separated_after() is None
    if wl(graphs).separated_after() is not None:
        assert folklore_wl(graphs).separated_after() is not None


def test_two_triangles_and_a_hexagon_are_separated_by_3wl_alone() -> None:
    pair = cycle(6), union(cycle(3), cycle(3))
    assert separated_by("1-WL", *pair) is None
    assert separated_by("3-WL", *pair) == 1


def test_strongly_regular_graphs_of_equal_parameters_are_left_equal() -> None:
    pair = rook(), shrikhande()
    assert separated_by("1-WL", *pair) is None
    found = folklore_wl(pair)
    assert (found.separated_after(), found.stable, found.rounds) == (None, True, 0)  # loops, edges and other pairs
    assert len(found.multiset(0)) == 3
    marked = [graph.with_features(torch.eye(16)[:, :1]) for graph in pair]  # one node of each
    assert folklore_wl(marked).separated_after() is not None  # where 3-WL fails, a marked node helps


def test_features_of_nodes_and_of_edges_count() -> None:
    triangle = cycle(3)
    other = triangle.with_features(torch.tensor([1.0, 0, 0]))
    assert folklore_wl([triangle.with_features(torch.zeros(3)), other]).separated_after() == 0
    weighted = [triangle.with_features(edge_attr=torch.tensor(values)) for values in ([1.0] * 6, [1.0] * 5 + [2.0])]
    assert folklore_wl(weighted).separated_after() == 0


@pytest.mark.parametrize("until_separated", [False, True])
def test_a_colouring_ends_at_the_first_difference_where_that_is_asked_for(until_separated: bool) -> None:
    first = undirected([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)], 7)
    second = union(undirected([(0, 1), (1, 2), (2, 3)], 4), cycle(3))
    for colour in (wl, folklore_wl):
        found = colour([first, second], until_separated=until_separated)
        assert found.separated_after() is not None
        assert (found.rounds == found.separated_after()) == until_separated


@pytest.mark.parametrize(
    ("pair", "three"),
    [(BASIC, True), (SIMPLE_REGULAR, True), (STRONGLY_REGULAR, False), (EXTENSION, True), (CFI, True)],
)
def test_published_pairs_are_separated_as_published(pair: int, three: bool) -> None:
    graphs = brec_pairs().chosen([pair])
    first, second = (Graph(graph.num_nodes, graph.edge_index) for graph in (graphs[0], graphs[1]))
    assert separated_by("1-WL", first, second) is None
    assert (separated_by("3-WL", first, second) is not None) == three
