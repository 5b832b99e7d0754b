"""Effective resistances: brute force, laws of circuits, projections, odd graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding import resistance
from graphgps_kmip.encoding.resistance import (
    edge_resistances,
    effective_resistances,
    resistance_embedding,
)

NO_EDGES = torch.empty(2, 0, dtype=torch.long)
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # of a solve in float64


def undirected(*pairs: tuple[int, int]) -> Tensor:
    edges = torch.tensor(pairs).T
    return torch.cat([edges, edges.flip(0)], dim=1)


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    return torch.randint(num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))


def brute_force(edge_index: Tensor, num_nodes: int) -> Tensor:
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency[edge_index[0], edge_index[1]] = adjacency[edge_index[1], edge_index[0]] = 1
    adjacency.fill_diagonal_(0)
    inverse = torch.linalg.pinv(torch.diag(adjacency.sum(1)) - adjacency, hermitian=True)
    together = torch.linalg.matrix_power((adjacency + torch.eye(num_nodes)).clamp(max=1), num_nodes) > 0
    resistances = inverse.diagonal()[:, None] + inverse.diagonal() - 2 * inverse
    return torch.where(together, resistances, torch.inf).fill_diagonal_(0)


def all_pairs(num_nodes: int) -> Tensor:
    return torch.cartesian_prod(torch.arange(num_nodes), torch.arange(num_nodes)).T


GRAPHS = {
    "connected": (random_graph(12, 40), 12),
    "many components": (random_graph(14, 8), 14),
    "one node": (NO_EDGES, 1),
    "no edges": (NO_EDGES, 4),
    "a loop alone": (torch.zeros(2, 1, dtype=torch.long), 2),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("dense", [True, False])
def test_all_pairs_have_the_resistance_of_the_pseudo_inverse(
    name: str, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not dense:
        monkeypatch.setattr(resistance, "DENSE", 0)
        monkeypatch.setattr(resistance, "ENTRIES", 40)  # a few columns at a time
    edges, num_nodes = GRAPHS[name]
    resistances = effective_resistances(edges, num_nodes, all_pairs(num_nodes))
    assert resistances.dtype == torch.float64
    torch.testing.assert_close(resistances.view(num_nodes, num_nodes), brute_force(edges, num_nodes), **TOLERANCE)


def test_a_large_graph_is_projected_and_right_to_the_accuracy() -> None:
    edges = random_graph(400, 900, seed=1)
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    exact = effective_resistances(edges, 400, edges)
    resistances = edge_resistances(edges, 400, accuracy=0.4)  # 375 rows: fewer than nodes
    assert not torch.equal(resistances, exact)
    torch.testing.assert_close(resistances, exact, rtol=0.4, atol=0)
    assert torch.equal(edge_resistances(edges, 400, accuracy=0.4), resistances)
    assert not torch.equal(edge_resistances(edges, 400, accuracy=0.4, seed=1), resistances)


@pytest.mark.parametrize("entries", [1 << 22, 40])
def test_distances_in_the_embedding_are_resistances(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resistance, "ENTRIES", entries)
    edges, num_nodes = GRAPHS["connected"]
    embedding = resistance_embedding(edges, num_nodes, 1000, np.random.default_rng(0))
    distances = torch.cdist(embedding, embedding).square()
    torch.testing.assert_close(distances, brute_force(edges, num_nodes), rtol=0.25, atol=0)  # 6 times sqrt(2 / 1000)


def test_edges_and_pairs_of_nodes_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="edge_index names node 3, but the graph has 3 nodes"):
        edge_resistances(torch.tensor([[0], [3]]), 3)
    with pytest.raises(ValueError, match="pairs names node -1, but the graph has 2 nodes"):
        effective_resistances(undirected((0, 1)), 2, torch.tensor([[-1], [1]]))
