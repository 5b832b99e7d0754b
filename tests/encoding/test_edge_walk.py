"""Probabilities of random walks between the ends of edges: brute force, odd graphs, memory."""

from __future__ import annotations

import tracemalloc
from functools import cache

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding import edge_walk
from graphgps_kmip.encoding.edge_walk import edge_walk_probabilities

TIMES = range(0, 8)
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def brute_force(edge_index: Tensor, num_nodes: int, times: range = TIMES) -> Tensor:
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency.index_put_(tuple(edge_index), adjacency.new_ones(edge_index.size(1)), accumulate=True)
    steps = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(steps, number) for number in times]
    return torch.stack([power[edge_index[0], edge_index[1]] for power in powers], dim=1)


def random_graph(num_nodes: int, num_edges: int, directed: bool = False, seed: int = 0) -> Tensor:
    """Repeated edges and self-loops are among them, and isolated nodes where edges are few."""
    edges = torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))
    return edges if directed else torch.cat([edges, edges.flip(0)], dim=1)


def path(num_nodes: int) -> Tensor:
    edges = torch.stack([torch.arange(num_nodes - 1), torch.arange(1, num_nodes)])
    return torch.cat([edges, edges.flip(0)], dim=1)


GRAPHS = {
    "undirected": (random_graph(30, 40), 30),
    "directed": (random_graph(30, 60, directed=True), 30),
    "directed cycle": (torch.tensor([[0, 1, 2], [1, 2, 0]]), 3),
    "many components": (random_graph(200, 90), 200),
    "longer than a block": (path(300), 300),
    "star": (torch.stack([torch.zeros(99, dtype=torch.long), torch.arange(1, 100)]), 100),
    "a loop alone": (torch.zeros(2, 1, dtype=torch.long), 1),
    "one node": (NO_EDGES, 1),
    "no node": (NO_EDGES, 0),
    "no edges": (NO_EDGES, 7),
}


@cache
def expected_entries(name: str) -> Tensor:
    return brute_force(*GRAPHS[name])


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("width", [64, 3])
def test_every_edge_gets_its_entries_of_the_matrix_powers(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_walk, "WIDTH", width)
    edges, num_nodes = GRAPHS[name]
    expected = expected_entries(name)
    found = edge_walk_probabilities(edges, num_nodes, TIMES, dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    single = edge_walk_probabilities(edges, num_nodes, TIMES)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-7)


def test_graphs_together_get_what_each_gets_alone() -> None:
    sizes = [30, 1, 5, 70, 2]
    graphs = [random_graph(size, 2 * size, seed=seed) for seed, size in enumerate(sizes)]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    joined = torch.cat([edges + start for edges, start in zip(graphs, starts, strict=False)], dim=1)
    together = edge_walk_probabilities(joined, sum(sizes), TIMES)
    alone = [edge_walk_probabilities(edges, size, TIMES) for edges, size in zip(graphs, sizes, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["undirected", "directed"])
def test_renumbered_nodes_and_edges_in_another_order_keep_their_values(name: str) -> None:
    edges, num_nodes = GRAPHS[name]
    order, shuffled = torch.randperm(num_nodes), torch.randperm(edges.size(1))
    before = edge_walk_probabilities(edges, num_nodes, TIMES, dtype=torch.float64)
    after = edge_walk_probabilities(order[edges[:, shuffled]], num_nodes, TIMES, dtype=torch.float64)
    torch.testing.assert_close(after, before[shuffled], rtol=1e-9, atol=1e-9)


def test_times_are_sorted_and_may_leave_gaps_and_repeat() -> None:
    edges, num_nodes = GRAPHS["directed"]
    found = edge_walk_probabilities(edges, num_nodes, [5, 1, 5], dtype=torch.float64)
    torch.testing.assert_close(found, brute_force(edges, num_nodes)[:, [1, 5, 5]], rtol=1e-9, atol=1e-9)


def test_memory_stays_within_its_limit_where_walks_reach_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_walk, "WIDTH", 1000)  # whose walks would take 16 MB
    size, limit = 2000, 1 << 18  # one power of P has 16 MB
    edges = random_graph(size, 4000)
    tracemalloc.start()
    found = edge_walk_probabilities(edges, size, range(1, 11), memory=limit)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit + 300 * edges.size(1)  # the graph and its transitions: some bytes an edge
    torch.testing.assert_close(found, edge_walk_probabilities(edges, size, range(1, 11)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("times", [[], [-1, 2]])
def test_no_or_negative_times_are_refused(times: list[int]) -> None:
    with pytest.raises(ValueError, match="kernel.times"):
        edge_walk_probabilities(path(4), 4, times)


@pytest.mark.parametrize("edges", [path(4), path(3) - 1])
def test_an_edge_out_of_its_graph_is_refused(edges: Tensor) -> None:
    with pytest.raises(ValueError, match="names a node outside the graph, which has 3 nodes"):
        edge_walk_probabilities(edges, 3, TIMES)
