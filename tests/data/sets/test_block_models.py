"""PATTERN and CLUSTER regenerated: sizes, probabilities and signals of the published recipe; the same at every call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.utils import contains_self_loops, is_undirected, subgraph

from graphgps_kmip.data.dataset_record import find
from graphgps_kmip.data.sets import block_models
from graphgps_kmip.data.sets.block_models import CLUSTER, PATTERN, BlockModel, DrawnGraphs, load_cluster, load_pattern

LOADS = {"PATTERN": load_pattern, "CLUSTER": load_cluster}


@pytest.mark.parametrize("name", LOADS)
def test_a_graph_is_the_same_at_every_call_and_differs_from_the_others(name: str) -> None:
    graphs = LOADS[name]().graphs
    for number in (0, 5, len(graphs) - 1):
        again = LOADS[name]().graphs[number]
        for key in ("x", "edge_index", "y"):
            assert torch.equal(graphs[number][key], again[key])
    assert graphs[0].num_edges != graphs[1].num_edges
    assert torch.equal(graphs[-1].x, graphs[len(graphs) - 1].x)
    assert [one.num_nodes for one in graphs[2:4]] == [graphs[2].num_nodes, graphs[3].num_nodes]
    with pytest.raises(IndexError):
        graphs[len(graphs)]


@pytest.mark.parametrize("name", LOADS)
def test_sizes_and_numbers_of_edges_are_those_published(name: str) -> None:
    published = find("block-models", name).statistics
    dataset = LOADS[name]()
    assert len(dataset) == published.graphs
    assert tuple(map(len, dataset.splits)) == published.sizes
    drawn = [dataset.graphs[number] for number in range(0, len(dataset), 29)]
    for attribute, mean in (("num_nodes", published.mean_nodes), ("num_edges", published.mean_edges)):
        values = np.array([getattr(graph, attribute) for graph in drawn])
        # 100 patterns are fewer than the graphs that have them: their sizes spread the mean of PATTERN by 0.9 nodes
        error = values.std() / min(len(values), 100) ** 0.5
        assert abs(values.mean() - mean) < 3 * error, attribute


@pytest.mark.parametrize("name", LOADS)
def test_graphs_are_undirected_without_loops_and_one_hot(name: str) -> None:
    record = find("block-models", name)
    for number in range(5):
        graph = LOADS[name]().graphs[number]
        assert is_undirected(graph.edge_index)
        assert not contains_self_loops(graph.edge_index)
        assert graph.x.shape == (graph.num_nodes, record.features.node)
        assert torch.equal(graph.x.sum(dim=1), torch.ones(graph.num_nodes))


def test_the_pattern_is_the_same_in_all_graphs_that_have_it() -> None:
    graphs = load_pattern().graphs

    def pattern(number: int) -> tuple[list[int], list[float]]:
        graph = graphs[number]
        nodes = graph.y.nonzero().squeeze(1)
        inside = subgraph(nodes, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes)[0]
        return sorted(torch.bincount(inside[0], minlength=len(nodes)).tolist()), graph.x[nodes].sum(dim=0).tolist()

    # 100 graphs that train, 20 that validate and 20 that test have pattern 0; the next ones have pattern 1
    assert pattern(0) == pattern(1) == pattern(99) == pattern(10_000) == pattern(10_019) == pattern(12_000)
    assert pattern(0) != pattern(100)
    assert pattern(100) == pattern(10_020) == pattern(12_020)


def test_one_node_of_each_community_shows_it() -> None:
    for number in range(10):
        graph = load_cluster().graphs[number]
        values = graph.x.argmax(dim=1)
        shown = values > 0
        assert sorted(values[shown].tolist()) == [1, 2, 3, 4, 5, 6]
        assert torch.equal(values[shown] - 1, graph.y[shown])


@pytest.mark.parametrize(("name", "model"), [("CLUSTER", CLUSTER), ("PATTERN", PATTERN)])
def test_edges_have_the_published_probabilities(name: str, model: BlockModel) -> None:
    graphs = [LOADS[name]().graphs[number] for number in range(60)]
    counts = {True: [0, 0], False: [0, 0]}  # same label -> edges, pairs
    for graph in graphs:
        same = graph.y[:, None] == graph.y
        if name == "PATTERN":  # communities are not given: pairs inside the pattern against those across its border
            pairs = {True: same & (graph.y == 1), False: ~same}
        else:
            pairs = {True: same, False: ~same}
        edges = torch.zeros_like(same)
        edges[tuple(graph.edge_index)] = True
        for inside, mask in pairs.items():
            mask = mask & ~torch.eye(len(mask), dtype=torch.bool)
            counts[inside][0] += int((edges & mask).sum()) // 2
            counts[inside][1] += int(mask.sum()) // 2
    wanted = {True: model.inside, False: model.between if name == "CLUSTER" else 0.5}
    for inside, (edges, pairs) in counts.items():
        spread = (wanted[inside] * (1 - wanted[inside]) / pairs) ** 0.5
        distinct = 4 if name == "CLUSTER" or not inside else 40  # one pattern in all: its edges are drawn once
        assert abs(edges / pairs - wanted[inside]) < distinct * spread


def test_another_kind_of_graphs_has_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    first = DrawnGraphs(lambda _number, generator: generator.random(), 0, 3)
    second = DrawnGraphs(lambda _number, generator: generator.random(), 1, 3)
    assert len({first[0], first[1], first[2], second[0]}) == 4
    before = first[0]
    monkeypatch.setattr(block_models, "SEED", 1)
    assert first[0] != before
