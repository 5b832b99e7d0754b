"""Edges drawn into each node: exact probabilities, and the same draw in whatever batch."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from graphgps_kmip.data import edge_sampling
from graphgps_kmip.data.edge_sampling import HOW, KERNEL, draw_edges
from graphgps_kmip.data.score_file import LayerScores
from graphgps_kmip.ops.native import unavailable_reason
from tests.data.scored import layer_of

SEED = (3, 0, 0, 0, 1)
P = torch.tensor([0.55, 0.25, 0.15, 0.05])
NODES = 30_000


@pytest.fixture(params=["C", "numpy"], autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(edge_sampling, "unavailable_reason", lambda *_: "no compiler")
    elif unavailable_reason(*KERNEL):
        pytest.skip("no C compiler")


def ids_of(layer: LayerScores, k: int, how: str = "reservoir", **options: object) -> list[list[int]]:
    ids, counts = draw_edges(layer, k, how, SEED, **options)
    return [part.tolist() for part in ids.split(counts.tolist())]


def probabilities_of_subsets(p: Tensor, k: int) -> Tensor:
    """Return the probability of each subset, summed over all orders in which its edges may be drawn."""
    p = p.double().tolist()
    result = []
    for subset in combinations(range(len(p)), k):
        total = 0.0
        for order in permutations(subset):
            left, product = sum(p), 1.0
            for edge in order:
                product *= p[edge] / left
                left -= p[edge]
            total += product
        result.append(total)
    return torch.tensor(result, dtype=torch.float64)


def chi_square(observed: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * observed.sum()
    return float(chi2.sf(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1))


def counts_of_subsets(k: int, how: str) -> Tensor:
    layer = layer_of(torch.full((NODES,), 4), P.repeat(NODES))
    ids, counts = draw_edges(layer, k, how, SEED)
    assert (counts == k).all()
    place = ids.view(NODES, k) - 4 * torch.arange(NODES)[:, None]
    subsets = torch.tensor(list(combinations(range(4), k)))
    return (place[:, None] == subsets).all(dim=2).sum(dim=0)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_subsets_are_drawn_with_the_probabilities_of_one_edge_after_the_other_without_replacement(k: int) -> None:
    observed = counts_of_subsets(k, "reservoir")
    assert chi_square(observed, probabilities_of_subsets(P, k)) > 1e-3
    # what this test would see: squared scores, a large epsilon, no scores
    for wrong in (P**2 / (P**2).sum(), (P + 0.02) / (P + 0.02).sum(), torch.full((4,), 0.25)):
        assert chi_square(observed, probabilities_of_subsets(wrong, k)) < 1e-6
    equal = probabilities_of_subsets(torch.full((4,), 0.25), k)
    assert chi_square(counts_of_subsets(k, "uniform"), equal) > 1e-3


def test_max_takes_the_largest_scores_and_of_equal_ones_the_first() -> None:
    layer = layer_of([5, 3, 4], [0.1, 0.3, 0.2, 0.3, 0.1, 0.2, 0.2, 0.2, 0.0, 0.0, 0.5, 0.5])
    assert ids_of(layer, 3, "max") == [[1, 2, 3], [5, 6, 7], [8, 10, 11]]
    assert ids_of(layer, 2, "max") == [[1, 3], [5, 6], [10, 11]]


@pytest.mark.parametrize("how", HOW)
def test_nodes_with_few_edges_keep_all_of_them_and_nodes_without_edges_have_none(how: str) -> None:
    layer = layer_of([2, 0, 3, 1, 0])
    assert ids_of(layer, 3, how) == [[0, 1], [], [2, 3, 4], [5], []]
    assert ids_of(layer_of([0, 0]), 3, how) == [[], []]
    assert ids_of(layer_of([0]), 1, how, repeat=True) == [[]]
    assert ids_of(layer_of([1]), 1, how) == [[0]]
    assert ids_of(layer, 10**12, how) == ids_of(layer, 3, how)


@pytest.mark.parametrize("how", HOW)
def test_every_edge_is_drawn_once_at_most_and_belongs_to_its_node(how: str) -> None:
    degrees = torch.randint(0, 200, (300,), generator=torch.Generator().manual_seed(4))
    layer = layer_of(degrees)
    for k in (1, 7, 60):
        ids, counts = draw_edges(layer, k, how, SEED)
        assert torch.equal(counts, degrees.clamp(max=k))
        node = torch.arange(300).repeat_interleave(counts)
        assert ((layer.ptr[node] <= ids) & (ids < layer.ptr[node + 1])).all()
        assert (ids.diff() > 0).all()  # increasing, so each once


@pytest.mark.parametrize("how", ["reservoir", "uniform", "max"])
def test_missing_edges_are_drawn_among_those_there_are_with_replacement(how: str) -> None:
    nodes = 20_000
    layer = layer_of(torch.full((nodes,), 2), torch.tensor([0.8, 0.2]).repeat(nodes))
    ids, counts = draw_edges(layer, 4, how, SEED, repeat=True)
    assert (counts == 4).all()
    place = ids.view(nodes, 4) - 2 * torch.arange(nodes)[:, None]
    assert (place[:, :2] == torch.tensor([0, 1])).all()  # each of them once
    pairs = (2 * place[:, 2] + place[:, 3]).bincount(minlength=4)
    p = torch.tensor([0.5, 0.5] if how == "uniform" else [0.8, 0.2], dtype=torch.float64)
    assert chi_square(pairs, torch.outer(p, p).flatten()) > 1e-3


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_the_draw_of_a_node_does_not_depend_on_the_others(how: str, repeat: bool) -> None:
    degrees = torch.randint(0, 40, (200,), generator=torch.Generator().manual_seed(5))
    layer = layer_of(degrees)
    whole = ids_of(layer, 6, how, repeat=repeat)
    nodes = torch.randperm(200, generator=torch.Generator().manual_seed(6))[:70]
    assert ids_of(layer, 6, how, nodes=nodes, repeat=repeat) == [whole[node] for node in nodes.tolist()]
    for node in nodes[:5].tolist():
        assert ids_of(layer, 6, how, nodes=torch.tensor([node]), repeat=repeat) == [whole[node]]


def test_each_number_of_the_seed_changes_the_draw_and_the_same_seed_repeats_it() -> None:
    layer = layer_of(torch.full((50,), 20))
    seeds = [(0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]
    drawn = [tuple(draw_edges(layer, 5, "reservoir", seed)[0].tolist()) for seed in seeds]
    assert len(set(drawn)) == len(seeds)
    torch.manual_seed(1)
    assert tuple(draw_edges(layer, 5, "reservoir", seeds[0])[0].tolist()) == drawn[0]
