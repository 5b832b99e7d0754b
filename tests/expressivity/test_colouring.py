"""1-WL and SEG-WL: exact colours, the standard pairs, and how the tests refine each other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphgps_kmip.expressivity.seg_wl import (
    Encoding,
    Graph,
    Scheme,
    constant_scheme,
    cycle,
    directed,
    rounded,
    seg_wl,
    theorem_scheme,
    undirected,
    union,
    wl,
)
from graphgps_kmip.expressivity.theorem import Pair, path, random_pair, standard_pairs
from graphgps_kmip.expressivity.wl_picture import ENCODINGS, INVARIANT, encode

PAIRS = {pair.name: pair for pair in standard_pairs()}
HEXAGON = PAIRS["hexagon, two triangles"]


def separated(pair: Pair, scheme: Callable[[Graph], Scheme] = theorem_scheme) -> int | None:
    graphs = (pair.first, pair.second)
    return seg_wl(graphs, [scheme(graph) for graph in graphs]).separated_after()


def with_encoding(name: str) -> Callable[[Graph], Scheme]:
    return lambda graph: theorem_scheme(graph, encode(name, graph))


def plain(graph: Graph) -> Graph:
    return Graph(graph.num_nodes, graph.edge_index)


@pytest.mark.parametrize("name", PAIRS)
def test_1wl_separates_the_standard_pairs_that_it_should(name: str) -> None:
    pair = PAIRS[name]
    assert (wl([pair.first, pair.second]).separated_after() is not None) == pair.wl


def test_1wl_of_a_path_finds_the_distance_to_the_nearer_end() -> None:
    colours = wl([path(7)]).history[-1][0].tolist()
    assert colours == colours[::-1]
    assert len(set(colours)) == 4


def test_the_number_of_rounds_is_that_of_the_refinement() -> None:
    found = wl([path(7)])
    assert (found.rounds, found.stable) == (3, True)
    assert [len(found.multiset(0, after)) for after in range(4)] == [1, 2, 3, 4]
    assert wl([path(7)], rounds=1).stable is False


def test_trees_of_equal_degrees_differ_in_the_second_round() -> None:
    pair = PAIRS["trees of equal degrees"]
    assert wl([pair.first, pair.second]).separated_after() == 2
    assert wl([pair.first, pair.second], rounds=1).separated_after() is None


def test_edges_count_into_a_node() -> None:
    colours = wl([directed([(0, 1), (1, 2)], 3)], rounds=1).history[-1][0].tolist()
    assert colours[0] != colours[1] == colours[2]


def test_an_edge_that_stands_there_twice_counts_twice() -> None:
    once, twice = directed([(0, 1)], 2), directed([(0, 1), (0, 1)], 2)
    assert wl([once, twice]).separated_after() == 1
    assert separated(Pair("", once, twice)) == 1


@pytest.mark.parametrize("name", PAIRS)
def test_segwl_with_constants_is_1wl_on_graphs_without_features(name: str) -> None:
    pair = PAIRS[name]
    pair = Pair(name, plain(pair.first), plain(pair.second))
    after = wl([pair.first, pair.second]).separated_after()
    assert separated(pair, constant_scheme) == separated(pair) == after


def test_constants_hide_a_node_from_itself_so_that_segwl_sees_less_than_1wl_with_features() -> None:
    graph = cycle(4).with_features(x=torch.tensor([[0], [0], [1], [1]]))  # one of each near, one of each afar
    assert len(seg_wl([graph], [constant_scheme(graph)], rounds=1).multiset(0)) == 1
    assert len(wl([graph], rounds=1).multiset(0)) == 2


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_segwl_with_the_theorems_scheme_separates_as_1wl_and_in_the_same_round(seed: int) -> None:
    pair = random_pair(seed)
    assert separated(pair) == wl([pair.first, pair.second]).separated_after()


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_what_is_known_of_random_pairs_is_found(seed: int) -> None:
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


@pytest.mark.parametrize("name", INVARIANT)
def test_nothing_here_separates_strongly_regular_graphs(name: str) -> None:
    pair = PAIRS["4x4 rook, Shrikhande"]
    assert separated(pair, with_encoding(name)) is None
    for graph in (pair.first, pair.second):
        assert torch.bincount(graph.edge_index[0]).tolist() == [6] * 16
    assert cliques_of_four(pair.first) > cliques_of_four(pair.second) == 0  # and they do differ


def cliques_of_four(graph: Graph) -> int:
    linked = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.bool)
    linked[graph.edge_index[0], graph.edge_index[1]] = True
    subsets = torch.combinations(torch.arange(graph.num_nodes), 4)
    pairs = torch.combinations(torch.arange(4), 2)
    return int(linked[subsets[:, pairs[:, 0]], subsets[:, pairs[:, 1]]].all(1).sum())


def test_shortest_paths_of_all_pairs_separate_cycles_but_not_prism_and_utility_graph() -> None:
    assert separated(HEXAGON, with_encoding("shortest paths")) == 1
    assert separated(PAIRS["prism, K(3,3)"], with_encoding("shortest paths")) is None


def test_shortest_paths_are_those_to_the_node_of_the_row() -> None:
    found = encode("shortest paths", directed([(0, 1), (1, 2)], 3)).pair[..., 0].tolist()
    assert found == [[0, -1, -1], [1, 0, -1], [2, 1, 0]]


def test_eigenvectors_of_the_solver_tell_a_graph_from_its_permuted_copy() -> None:
    pair = PAIRS["Shrikhande, permuted"]
    assert pair.isomorphic
    assert separated(pair, with_encoding("Laplacian eigenvectors")) == 0


def test_graphs_of_different_sizes_differ() -> None:
    pair = Pair("", cycle(4), cycle(5))
    assert wl([pair.first, pair.second]).separated_after() == 0
    assert separated(pair) == 0


def test_three_graphs_can_be_compared_at_once() -> None:
    found = wl([cycle(6), union(cycle(3), cycle(3)), path(6)])
    assert found.separated_after(0, 1) is None
    assert found.separated_after(0, 2) == 1


def test_a_graph_without_edges_and_one_node_are_graphs() -> None:
    alone = undirected([], 1)
    assert wl([alone]).rounds == 0
    assert separated(Pair("", alone, alone)) is None


def test_a_thousand_nodes_take_seconds() -> None:
    start = time.process_time()
    found = wl([path(1000), path(1000)], rounds=60)
    assert len(found.multiset(0)) == 61
    assert time.process_time() - start < 5


@pytest.mark.parametrize("colour", [wl, lambda graphs: seg_wl(graphs, [theorem_scheme(graph) for graph in graphs])])
@pytest.mark.parametrize("key", ["x", "edge_attr"])
def test_numbers_count_by_value(key: str, colour: Callable) -> None:
    graph = cycle(4)
    count = graph.num_nodes if key == "x" else graph.edge_index.size(1)

    def of(value: float, dtype: torch.dtype = torch.float64) -> Graph:
        return graph.with_features(**{key: torch.full((count, 1), value, dtype=dtype)})

    assert colour([of(-0.0), of(0.0)]).separated_after() is None
    assert colour([of(1.0), of(1, torch.int64)]).separated_after() is None
    assert colour([of(0.1), of(0.1, torch.float32)]).separated_after() is not None
    assert colour([of(0.3), of(0.1 + 0.2)]).separated_after() is not None
    with pytest.raises(ValueError, match="NaN"):
        colour([of(float("nan"))])


def test_rounded_encodings_forget_the_last_digits() -> None:
    # 27 / 512 lies right between two numbers of 8 decimals
    for value in (0.3, 27 / 512, 0.2**9, 0.0):
        one, other = (
            rounded(Encoding(node=torch.tensor([[near]], dtype=torch.float64)), 8) for near in (value, value - 1e-16)
        )
        assert one.node.item() == other.node.item() == pytest.approx(value, abs=1e-8)
    assert rounded(Encoding(node=torch.tensor([[0.0], [2e-8]], dtype=torch.float64)), 8).node.unique().numel() == 2


def test_the_scheme_of_the_theorem_is_as_printed() -> None:
    graph = directed([(0, 1)], 2).with_features(edge_attr=torch.tensor([[7]]))
    found = theorem_scheme(graph, Encoding(node=torch.tensor([[1.0], [2.0]]), edge=torch.tensor([[0.5]])))
    assert found.node == [(1.0,), (2.0,)]
    nothing = (False, False, (), ())
    itself = (False, True, (), ())
    assert found.pair == [[itself, nothing], [(True, False, (((7,), (0.5,)),), ()), itself]]


def test_an_encoding_of_another_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="encoding of nodes has 3 rows, expected 4"):
        theorem_scheme(cycle(4), Encoding(node=torch.zeros(3, 1)))
    with pytest.raises(ValueError, match="edge_attr has 2 rows, expected 8"):
        cycle(4).with_features(edge_attr=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="names node 4"):
        Graph(4, torch.tensor([[0], [4]]))
