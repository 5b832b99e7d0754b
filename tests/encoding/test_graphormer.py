"""Distances, degrees and paths of edges inside a graph: brute force, odd graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding import graphormer_bias as graphormer
from graphgps_kmip.encoding.graphormer_bias import (
    NO_EDGE,
    UNREACHABLE,
    in_and_out_degrees,
    path_types,
    shortest_distances,
)

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
LINE = torch.tensor([[0, 1, 2], [1, 2, 3]])  # directed


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Directed; repeated edges and self-loops are among them."""
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


GRAPHS = {
    "directed": (random_graph(12, 20), 12),
    "dense": (random_graph(9, 60), 9),
    "many components": (random_graph(20, 8), 20),
    "one node": (NO_EDGES, 1),
    "a loop alone": (torch.zeros(2, 1, dtype=torch.long), 1),
    "no edges": (NO_EDGES, 4),
}


def brute_force(edge_index: Tensor, num_nodes: int) -> Tensor:
    """By powers of the adjacency matrix: the first in which a pair is not 0."""
    found = torch.full((num_nodes, num_nodes), UNREACHABLE)
    adjacency = torch.zeros(num_nodes, num_nodes)
    adjacency[edge_index[0], edge_index[1]] = 1
    reached = torch.eye(num_nodes)
    for steps in range(num_nodes):
        found[(reached > 0) & (found == UNREACHABLE)] = steps
        reached = ((reached @ adjacency) > 0).float()
    return found


@pytest.mark.parametrize("name", GRAPHS)
def test_distances_are_lengths_of_shortest_directed_paths(name: str) -> None:
    edges, num_nodes = GRAPHS[name]
    found = shortest_distances(edges, num_nodes)
    assert found.dtype == torch.int16
    assert found.view(num_nodes, num_nodes).tolist() == brute_force(edges, num_nodes).tolist()


def test_renumbered_nodes_keep_their_distances() -> None:
    edges, num_nodes = GRAPHS["directed"]
    order = torch.randperm(num_nodes)
    before = shortest_distances(edges, num_nodes).view(num_nodes, num_nodes)
    after = shortest_distances(order[edges], num_nodes).view(num_nodes, num_nodes)
    assert torch.equal(after[order][:, order], before)


def test_edges_that_end_in_a_node_and_that_leave_it_are_counted_apart() -> None:
    ending, leaving = in_and_out_degrees(torch.tensor([[0, 0, 1, 1], [1, 2, 1, 2]]), 4)
    assert ending.tolist() == [0, 2, 2, 0]
    assert leaving.tolist() == [2, 2, 0, 0]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_types_on_a_path_lead_from_its_start_to_its_end(name: str) -> None:
    edges, num_nodes = GRAPHS[name]
    if edges.size(1):
        edges = edges.unique(dim=1)
    numbers = torch.arange(edges.size(1))  # every edge a type of its own: its path can be followed
    longest = num_nodes
    found = path_types(edges, num_nodes, numbers, longest).view(num_nodes, num_nodes, longest)
    distances = brute_force(edges, num_nodes)
    for start in range(num_nodes):
        for end in range(num_nodes):
            distance = max(int(distances[start, end]), 0)
            path = found[start, end]
            assert bool((path[distance:] == NO_EDGE).all())
            if distance:
                steps = edges[:, path[:distance].long()]
                assert [start, *steps[1].tolist()] == [*steps[0].tolist(), end]


def test_long_paths_are_cut_and_the_first_of_repeated_edges_counts() -> None:
    edges = torch.cat([LINE, LINE[:, :1]], dim=1)
    found = path_types(edges, 4, torch.tensor([[5], [6], [7], [8]]), 2).view(4, 4, 2)
    assert found[0].tolist() == [[-1, -1], [5, -1], [5, 6], [5, 6]]
    assert found[1, 3].tolist() == [6, 7]
    assert found[3, 0].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (torch.ones(3), "needs one integer for each edge, got edge_attr .* of torch.float32: set it to False"),
        (torch.ones(3, 2, dtype=torch.long), r"got edge_attr \(3, 2\)"),
        (torch.tensor([0, -1, 2]), "edge types must be 0 to 32767, got -1 to 2"),
    ],
)
def test_edges_without_one_type_each_are_refused(types: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        path_types(LINE, 4, types, 3)


def test_too_large_graphs_and_edges_out_of_the_graph_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="outside the graph, which has 3 nodes"):
        shortest_distances(LINE, 3)
    monkeypatch.setattr(graphormer, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="up to 3 nodes, got 4: set posenc_GraphormerBias.node_degrees_only True"):
        shortest_distances(LINE, 4)
