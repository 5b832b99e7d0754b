"""Theorem 1 on random models and pairs, and what is outside of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run.expressivity import ATTENTIONS, GPS, MPNNS, TOLERANCE, counterexample, trial

from graphgps_kmip.expressivity.seg_wl import Encoding, cycle, union, wl
from graphgps_kmip.expressivity.theorem import REACH, Pair, difference, hops, probes, spread, standard_pairs, try_model

INSIDE = [name for name, reach in REACH.items() if reach.inside]
OUTSIDE = [name for name, reach in REACH.items() if not (reach.inside and reach.per_round)]
NO_ENCODINGS = (Encoding(), Encoding())
PERMUTED, DECALIN, TREES = probes()


def with_degrees(pair: Pair) -> Pair:
    """Without features, means over neighbours see nothing, and norms divide by the rounding of a variance of 0."""
    first, second = (
        graph.with_features(x=torch.bincount(graph.edge_index[1])[:, None]) for graph in (pair.first, pair.second)
    )
    return Pair(pair.name, first, second)


@given(st.sampled_from(INSIDE), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_nodes_of_one_colour_have_equal_outputs(name: str, seed: int) -> None:
    outcome = trial(name, seed)
    assert outcome.error < TOLERANCE
    assert not outcome.equal or max(outcome.difference, outcome.readout) < TOLERANCE


@pytest.mark.parametrize("name", INSIDE)
def test_models_inside_separate_a_pair_that_1wl_separates_and_none_that_it_leaves_equal(name: str) -> None:
    local, attention = (name, None) if name in MPNNS else ("GINE", name)
    outcome = try_model(GPS(local, attention, 3, 0), DECALIN, NO_ENCODINGS)
    assert outcome.equal
    assert max(outcome.error, outcome.difference, outcome.readout) < TOLERANCE
    outcome = try_model(GPS(local, attention, 3, 0), with_degrees(TREES), NO_ENCODINGS)
    assert not outcome.equal
    assert outcome.difference > 1e-6


@pytest.mark.parametrize("name", OUTSIDE)
def test_components_outside_separate_a_pair_that_segwl_leaves_equal(name: str) -> None:
    assert counterexample(name)[1] > 1e-6


@pytest.mark.parametrize("norm", ["layer", "graph"])
def test_norms_over_the_nodes_of_a_graph_stay_within_the_stable_colours(norm: str) -> None:
    outcome = try_model(GPS("GatedGCN", "kMIP", 2, 0, norm), with_degrees(DECALIN), NO_ENCODINGS)
    assert outcome.equal
    assert outcome.error < TOLERANCE


def test_encodings_let_a_model_separate_what_1wl_does_not() -> None:
    pair = standard_pairs()[0]
    encodings = tuple(Encoding(node=torch.full((6, 1), value)) for value in (0.0, 1.0))
    assert wl([pair.first, pair.second]).separated_after() is None
    outcome = try_model(GPS("GINE", "kMIP", 2, 0), pair, encodings)
    assert not outcome.equal
    assert outcome.difference > 1e-6


def test_biased_attention_is_inside_once_the_scheme_has_its_biases() -> None:
    # By distances the decalin pair differs, and so may the model; a permuted copy does not, and so must not the model.
    distances = tuple(hops(graph) for graph in (DECALIN.first, DECALIN.second))
    assert not try_model(GPS("GINE", "BiasedTransformer", 2, 0), DECALIN, distances).equal
    distances = tuple(hops(graph) for graph in (PERMUTED.first, PERMUTED.second))
    outcome = try_model(GPS("GINE", "BiasedTransformer", 2, 0), PERMUTED, distances)
    assert outcome.equal
    assert outcome.error < TOLERANCE


def test_one_layer_of_gcn_tells_more_than_a_round_and_no_more_than_two() -> None:
    model = GPS("GCN", None, 1, 0)
    assert not REACH["GCN"].per_round
    assert try_model(model, TREES, NO_ENCODINGS, rounds=1).error > 1e-6
    assert try_model(model, TREES, NO_ENCODINGS, rounds=2).error < TOLERANCE


def test_bigbird_is_full_attention_on_a_graph_of_few_blocks() -> None:
    graph = cycle(5).with_features(x=torch.arange(5.0)[:, None])  # R + 4 blocks of one node
    pair = Pair("", graph, graph.permuted(torch.tensor([2, 0, 1, 4, 3])))
    outcome = try_model(GPS(None, "BigBird", 1, 0), pair, NO_ENCODINGS)
    assert outcome.equal
    assert outcome.error < TOLERANCE


def test_ties_between_equal_nodes_do_not_matter_to_kmip() -> None:
    # Every query has six keys of one score and takes two.
    pair = Pair("", cycle(6), union(cycle(3), cycle(3)))
    for seed in range(5):
        assert try_model(GPS("GINE", "kMIP", 2, seed), pair, NO_ENCODINGS).error < TOLERANCE


def test_every_row_of_the_table_has_a_builder_and_every_builder_a_row() -> None:
    assert REACH.keys() == ATTENTIONS.keys() | MPNNS.keys()


def test_the_measures_see_a_difference() -> None:
    colouring = wl([cycle(3), cycle(3)])
    same, other = torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.25]])
    assert spread(colouring, [same, same]) == difference(same, same) == 0
    assert spread(colouring, [same, other]) == difference(same, other) == 0.25
    assert difference(same, same[:2]) == float("inf")
