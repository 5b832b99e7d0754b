"""Probabilities of random walks, back to a node and along an edge: records, brute force, odd graphs, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding import random_walk
from graphgps_kmip.encoding.random_walk import edge_walk_probabilities, return_probabilities
from tests.recorded import TOLERANCE, load, part

TIMES = range(1, 10)
NO_EDGES = torch.empty(2, 0, dtype=torch.long)
CLOSE = {"rtol": TOLERANCE, "atol": TOLERANCE}
Walk = Callable[..., Tensor]
WALKS = pytest.mark.parametrize("walk", [return_probabilities, edge_walk_probabilities])


def brute_force(walk: Walk, edge_index: Tensor, num_nodes: int, times: Sequence[int] = TIMES) -> Tensor:
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency.index_put_(tuple(edge_index), adjacency.new_ones(edge_index.size(1)), accumulate=True)
    steps = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    powers = [torch.linalg.matrix_power(steps, number) for number in times]
    if walk is return_probabilities:
        return torch.stack([power.diagonal() for power in powers], dim=1)
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
    "undirected and dense": (random_graph(90, 2000), 90),
    "directed and dense": (random_graph(90, 2000, directed=True), 90),
    "many components": (random_graph(200, 90), 200),
    "large and undirected": (random_graph(600, 700), 600),
    "large and directed": (random_graph(600, 1200, directed=True), 600),
    "large and dense": (random_graph(530, 20000), 530),
    "large path": (path(700), 700),
    "large star": (torch.stack([torch.zeros(599, dtype=torch.long), torch.arange(1, 600)]), 600),
    "large without edges": (NO_EDGES, 600),
    "one node": (NO_EDGES, 1),
    "one node with a loop": (torch.zeros(2, 1, dtype=torch.long), 1),
    "no node": (NO_EDGES, 0),
    "no edges": (NO_EDGES, 7),
    "directed cycle": (torch.tensor([[0, 1, 2], [1, 2, 0]]), 3),
}


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("kernel_stats", range(1, 9)),
        ("kernel_stats_isolated_node", range(1, 9)),
        ("rwse_stats_times_1_3_7", [7, 1, 3]),  # the public code sorts them
    ],
)
def test_statistics_match_the_public_code(name: str, times: range | list[int]) -> None:
    record = load(f"D_stats/{name}")
    for prefix, dtype, tolerance in (("out", torch.float64, TOLERANCE), ("f32/out", torch.float32, 1e-6)):
        outputs = {key: value for key, value in part(record, prefix).items() if key.startswith("RWSE")}
        for key, expected in outputs.items():
            edges = record[f"in/edge_index_{key.removeprefix('RWSE_')}"]
            values = return_probabilities(edges, len(expected), times, dtype=dtype)
            torch.testing.assert_close(values, expected, rtol=tolerance, atol=tolerance)


expected_of = cache(lambda walk, name: brute_force(walk, *GRAPHS[name]))


@WALKS
@pytest.mark.parametrize("name", GRAPHS)
def test_every_kind_of_graph_gets_the_entries_of_the_matrix_powers(
    walk: Walk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = 64 if name.startswith("large") else 3  # of blocks of edges: small graphs have several
    monkeypatch.setattr(random_walk, "EDGE_WIDTH", width)
    expected = expected_of(walk, name)
    torch.testing.assert_close(walk(*GRAPHS[name], TIMES, dtype=torch.float64), expected, **CLOSE)
    single = walk(*GRAPHS[name], TIMES)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("directed", [False, True])
def test_graphs_together_get_what_each_gets_alone(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_walk, "PANEL", 40_000)  # several groups, of several graphs
    sizes = [30, 0, 1, 530, 5, 70, 31, 2, 90, 5, 29]
    graphs = [random_graph(size, 3 * size, directed, seed) if size else NO_EDGES for seed, size in enumerate(sizes)]
    starts = torch.tensor([0, *sizes]).cumsum(0)
    joined = torch.cat([edges + start for edges, start in zip(graphs, starts, strict=False)], dim=1)
    together = return_probabilities(joined, sizes, TIMES)
    alone = [brute_force(return_probabilities, edges, size) for edges, size in zip(graphs, sizes, strict=True)]
    torch.testing.assert_close(together.double(), torch.cat(alone), rtol=1e-5, atol=1e-7)


@WALKS
@pytest.mark.parametrize("size", [20, 600])
def test_times_are_sorted_and_may_start_at_zero_leave_gaps_and_repeat(walk: Walk, size: int) -> None:
    edges = random_graph(size, 2 * size)
    values = walk(edges, size, [5, 0, 6, 2, 5], dtype=torch.float64)
    torch.testing.assert_close(values, brute_force(walk, edges, size, [0, 2, 5, 5, 6]), **CLOSE)


@WALKS
@pytest.mark.parametrize("directed", [False, True])
def test_memory_stays_within_its_limit_where_walks_reach_every_node(
    walk: Walk, directed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_walk, "EDGE_WIDTH", 1000)  # whose walks would take 5 MB
    size, limit = 1200, 1 << 18  # one power of P has 6 MB
    edges = random_graph(size, 2400, directed)
    expected = walk(edges, size, range(1, 11))
    monkeypatch.setattr(random_walk, "MEMORY", limit)
    tracemalloc.start()
    values = walk(edges, size, range(1, 11))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit + 300 * edges.size(1)  # the graph, its transitions and the part of a block: some bytes an edge
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-7)


@WALKS
@pytest.mark.parametrize("edges", [path(4), path(3) - 1])
def test_an_edge_out_of_its_graph_is_refused(walk: Walk, edges: Tensor) -> None:
    with pytest.raises(ValueError, match="outside its graph|but the graph has 3 nodes"):
        walk(edges, 3, TIMES)
