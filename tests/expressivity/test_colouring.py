"""1-WL, SEG-WL, 3-WL and GD-WL: exact colours, published pairs, and how the tests refine each other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.encoding.rrwp import RRWP, rrwp
from graphgps_kmip.errors import InputError
from graphgps_kmip.expressivity.seg_wl import (
    Encoding,
    Graph,
    Scheme,
    cycle,
    directed,
    folklore_wl,
    gd_wl,
    seg_wl,
    separated_by,
    theorem_scheme,
    undirected,
    union,
    wl,
)
from graphgps_kmip.expressivity.theorem import ENCODINGS, INVARIANT, Pair, encode, random_pair, standard_pairs
from run import propositions
from tests.data.sets.brec_pairs import BASIC, CFI, EXTENSION, SIMPLE_REGULAR, STRONGLY_REGULAR, brec_pairs

PAIRS = {pair.name: pair for pair in standard_pairs()}
HEXAGON = PAIRS["hexagon, two triangles"]


def separated(pair: Pair, scheme: Callable[[Graph], Scheme] = theorem_scheme) -> int | None:
    graphs = (pair.first, pair.second)
    return seg_wl(graphs, [scheme(graph) for graph in graphs]).separated_after()


def with_encoding(name: str) -> Callable[[Graph], Scheme]:
    return lambda graph: theorem_scheme(graph, encode(name, graph))


def plain(graph: Graph) -> Graph:
    return Graph(graph.num_nodes, graph.edge_index)


def constant_scheme(graph: Graph) -> Scheme:
    """The scheme of equations 5 and 6 of the paper, with which SEG-WL is 1-WL on graphs without features."""
    linked = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.bool)
    linked[tuple(graph.edge_index.flip(0))] = True
    return Scheme([()] * graph.num_nodes, linked.tolist())


@pytest.mark.parametrize("name", PAIRS)
def test_1wl_separates_the_standard_pairs_that_it_should(name: str) -> None:
    pair = PAIRS[name]
    assert (wl([pair.first, pair.second]).separated_after() is not None) == pair.wl


@pytest.mark.parametrize("name", PAIRS)
def test_segwl_with_constants_is_1wl_on_graphs_without_features(name: str) -> None:
    pair = PAIRS[name]
    pair = Pair(name, plain(pair.first), plain(pair.second))
    after = wl([pair.first, pair.second]).separated_after()
    assert separated(pair, constant_scheme) == separated(pair) == after


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_segwl_with_the_theorems_scheme_separates_as_1wl_and_in_the_same_round(seed: int) -> None:
    pair = random_pair(seed)
    assert separated(pair) == wl([pair.first, pair.second]).separated_after()


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_random_pairs_are_as_they_say(seed: int) -> None:
    pair = random_pair(seed)
    if pair.wl is not None:
        assert (wl([pair.first, pair.second]).separated_after() is not None) == pair.wl
    if pair.isomorphic:
        assert all(separated(pair, with_encoding(name)) is None for name in INVARIANT)


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_a_refined_scheme_separates_what_the_coarser_one_does_and_no_later(seed: int) -> None:
    pair = random_pair(seed)
    coarse = separated(pair)
    for name in ENCODINGS:
        fine = separated(pair, with_encoding(name))
        assert coarse is None or (fine is not None and fine <= coarse)


@pytest.mark.parametrize("name", ["RWSE", "Laplacian eigenvalues", "Laplacian eigenspaces"])
@pytest.mark.parametrize("pair", ["hexagon, two triangles", "decalin, bicyclopentyl", "CSL(41, 2), CSL(41, 3)"])
def test_encodings_go_beyond_1wl(pair: str, name: str) -> None:
    assert PAIRS[pair].wl is False
    assert separated(PAIRS[pair], with_encoding(name)) == 0


def test_shortest_paths_of_all_pairs_separate_cycles_but_not_prism_and_utility_graph() -> None:
    assert separated(HEXAGON, with_encoding("shortest paths")) == 1
    assert separated(PAIRS["prism, K(3,3)"], with_encoding("shortest paths")) is None


def naive_colours(graphs: list[Graph], rounds: int) -> list[Counter[Hashable]]:
    """Return the multisets of 2-FWL colours, each colour a nested tuple."""
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
    return [Counter(colour.values()) for colour in colours]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans())
def test_colours_are_those_of_the_definition(seed: int, size: int, both_ways: bool) -> None:
    rng = np.random.default_rng(seed)
    graphs = []
    for _ in range(2):
        pairs = [(a, b) for a in range(size) for b in range(size) if a != b and rng.random() < 0.4]
        graphs.append((undirected if both_ways else directed)(pairs, size))
    colouring = folklore_wl(graphs, rounds=2)
    for after in range(3):
        ours = [colouring.multiset(graph, after) for graph in (0, 1)]
        naive = naive_colours(graphs, after)
        assert (ours[0] == ours[1]) == (naive[0] == naive[1])
        assert [sorted(counts.values()) for counts in ours] == [sorted(counts.values()) for counts in naive]


def test_strongly_regular_graphs_of_equal_parameters_are_left_equal() -> None:
    pair = PAIRS["4x4 rook, Shrikhande"].first, PAIRS["4x4 rook, Shrikhande"].second
    assert separated_by("1-WL", *pair) is None
    colouring = folklore_wl(pair)
    assert (colouring.separated_after(), colouring.stable, colouring.rounds) == (None, True, 0)
    assert len(colouring.multiset(0)) == 3  # loops, edges and other pairs
    marked = [graph.with_features(torch.eye(16)[:, :1]) for graph in pair]  # one node of each
    assert folklore_wl(marked).separated_after() is not None  # where 3-WL fails, a marked node helps


@pytest.mark.parametrize("until_separated", [False, True])
def test_a_colouring_ends_at_the_first_difference_where_that_is_asked_for(until_separated: bool) -> None:
    first = undirected([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6)], 7)
    second = union(undirected([(0, 1), (1, 2), (2, 3)], 4), cycle(3))
    for colour in (wl, folklore_wl):
        colouring = colour([first, second], until_separated=until_separated)
        assert colouring.separated_after() is not None
        assert (colouring.rounds == colouring.separated_after()) == until_separated


@pytest.mark.parametrize(
    ("pair", "three"),
    [(BASIC, True), (SIMPLE_REGULAR, True), (STRONGLY_REGULAR, False), (EXTENSION, True), (CFI, True)],
)
def test_published_pairs_are_separated_as_published(pair: int, three: bool) -> None:
    graphs = brec_pairs().select([pair])
    first, second = (Graph(graph.num_nodes, graph.edge_index) for graph in (graphs[0], graphs[1]))
    assert separated_by("1-WL", first, second) is None
    assert (separated_by("3-WL", first, second) is not None) == three


@pytest.mark.parametrize("colour", [wl, lambda graphs: seg_wl(graphs, [theorem_scheme(graph) for graph in graphs])])
@pytest.mark.parametrize("key", ["x", "edge_attr"])
def test_numbers_count_by_value(key: str, colour: Callable) -> None:
    graph = cycle(4)
    count = graph.num_nodes if key == "x" else graph.edge_index.size(1)

    def fill(value: float, dtype: torch.dtype = torch.float64) -> Graph:
        return graph.with_features(**{key: torch.full((count, 1), value, dtype=dtype)})

    assert colour([fill(-0.0), fill(0.0)]).separated_after() is None
    assert colour([fill(1.0), fill(1, torch.int64)]).separated_after() is None
    assert colour([fill(0.1), fill(0.1, torch.float32)]).separated_after() is not None
    assert colour([fill(0.3), fill(0.1 + 0.2)]).separated_after() is not None
    with pytest.raises(ValueError, match="NaN"):
        colour([fill(float("nan"))])


def test_the_scheme_of_the_theorem_is_as_printed() -> None:
    graph = directed([(0, 1)], 2).with_features(edge_attr=torch.tensor([[7]]))
    scheme = theorem_scheme(graph, Encoding(node=torch.tensor([[1.0], [2.0]]), edge=torch.tensor([[0.5]])))
    assert scheme.node == [(1.0,), (2.0,)]
    nothing, itself = (False, False, (), ()), (False, True, (), ())
    assert scheme.pair == [[itself, nothing], [(True, False, (((7,), (0.5,)),), ()), itself]]


def test_an_encoding_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="encoding of nodes has 3 rows, expected 4"):
        theorem_scheme(cycle(4), Encoding(node=torch.zeros(3, 1)))


WALKS = propositions.WALKS
PLAIN_PAIRS = propositions.plain_pairs()
RANDOM = [pair for pair in map(random_pair, range(60)) if propositions.is_plain(pair.first)][:12]


@pytest.mark.parametrize("pair", [*PLAIN_PAIRS, *RANDOM], ids=lambda pair: pair.name)
def test_gd_wl_is_between_1_wl_and_3_wl(pair: Pair) -> None:
    graphs = pair.first, pair.second
    after = gd_wl(graphs, WALKS).separated_after()
    assert separated_by("1-WL", *graphs) is None or after is not None
    assert separated_by("3-WL", *graphs) is not None or after is None


def test_gd_wl_is_the_multiset_of_colours_and_distances() -> None:
    graphs = (cycle(6), union(cycle(3), cycle(3)))
    walks = [rrwp(graph.edge_index, 6, WALKS).view(6, 6, -1) for graph in graphs]
    rows = [sorted(map(tuple, of_graph[0].round(decimals=9).tolist())) for of_graph in walks]
    assert rows[0] != rows[1]  # all nodes of a graph are equal: one row is enough
    colouring = gd_wl(graphs, WALKS)
    assert colouring.separated_after() == 1
    assert [len(colouring.multiset(graph)) for graph in (0, 1)] == [1, 1]
    assert gd_wl(graphs, RRWP(ksteps=1, channels="K+1", precision="float64")).separated_after() is None  # is 1-WL


def test_edge_features_and_single_precision_are_refused() -> None:
    with pytest.raises(InputError, match="leave edge_attr out"):
        gd_wl([cycle(3).with_features(edge_attr=torch.zeros(6, 1))], WALKS)
    with pytest.raises(InputError, match="set precision float64, got float32"):
        gd_wl([cycle(3)], RRWP())


def test_the_command_fails_with_a_proposition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert propositions.main(["--out", str(tmp_path)]) == 0
    cells = json.loads((tmp_path / "E.1.json").read_text())["cells"]
    assert cells["4x4 rook, Shrikhande"]["GD-WL"] == "equal"
    hexagon = cells["hexagon, two triangles"]
    assert (hexagon["1-WL"], hexagon["GD-WL"], hexagon["3-WL"]) == ("equal", [1], [1])
    assert "was seen" in capsys.readouterr().out
    monkeypatch.setattr(propositions, "difference", lambda *_: 0.0)
    assert propositions.main(["--out", str(tmp_path)]) == 1
    assert "Proposition E.1: what it says WAS NOT SEEN" in capsys.readouterr().out
