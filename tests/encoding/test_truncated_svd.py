"""Factors of matrices of pairs of nodes: the best approximation of their rank, symmetries, solvers, signs, errors."""

from __future__ import annotations

from itertools import product

import networkx as nx
import pytest
import scipy
import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

import graphgps_kmip.encoding.truncated_svd as truncated_svd
from graphgps_kmip.encoding import AddEncoding
from graphgps_kmip.encoding.truncated_svd import MATRICES, SVD, svd_factors
from graphgps_kmip.errors import ConfigError, InputError

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def both_ways(graph: nx.Graph) -> Data:
    graph = nx.convert_node_labels_to_integers(graph).to_directed()
    return Data(edge_index=torch.tensor(list(graph.edges)).reshape(-1, 2).T, num_nodes=len(graph))


PARTS = [nx.empty_graph(1), nx.path_graph(4), nx.cycle_graph(5), nx.path_graph(4), nx.empty_graph(1)]
GRAPHS = {
    "path": both_ways(nx.path_graph(9)),
    "cycle": both_ways(nx.cycle_graph(8)),
    "star": both_ways(nx.star_graph(6)),
    "complete": both_ways(nx.complete_graph(5)),
    "random": both_ways(nx.gnp_random_graph(30, 0.2, seed=1)),
    "components, some equal, and isolated nodes": both_ways(nx.disjoint_union_all(PARTS)),
    "one node": both_ways(nx.empty_graph(1)),
    "no edges": both_ways(nx.empty_graph(4)),
    "a node with a loop beside another": Data(edge_index=torch.tensor([[1], [1]]), num_nodes=2),
    "directed, repeated edges and loops": Data(edge_index=torch.randint(12, (2, 40)), num_nodes=14),
    "directed path": Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4),
}


def matrix_of(graph: Data, kind: str, steps: int) -> Tensor:
    size = graph.num_nodes
    adjacency = torch.zeros(size, size, dtype=torch.float64)
    for i, j in graph.edge_index.T.tolist():
        adjacency[i, j] = 1
    leaving, arriving = adjacency.sum(1).clamp_min(1), adjacency.sum(0).clamp_min(1)
    if kind == "adjacency":
        return adjacency
    if kind == "symmetric":
        return adjacency / (leaving[:, None] * arriving).sqrt()
    if kind == "random_walk":
        return torch.linalg.matrix_power(adjacency / leaving[:, None], steps)
    lengths = dict(nx.all_pairs_shortest_path_length(nx.from_numpy_array(adjacency.numpy(), create_using=nx.DiGraph)))
    return torch.tensor(
        [[1 / (1 + lengths[i][j]) if j in lengths[i] else 0.0 for j in range(size)] for i in range(size)],
        dtype=torch.float64,
    )


def check(graph: Data, kind: str, rank: int, steps: int = 3) -> None:
    """Eckart and Young: nothing but the error of the best approximation is the same for all that attain it."""
    matrix, size = matrix_of(graph, kind, steps), graph.num_nodes
    left, right = svd_factors(graph.edge_index, size, rank, kind, steps=steps)
    assert left.shape == right.shape == (size, rank)
    assert left.dtype == torch.float64
    values = torch.linalg.svdvals(matrix)
    numerical = int((values > 1e-9 * values.max()).sum())
    largest = torch.zeros(rank, dtype=torch.float64)
    largest[: min(rank, numerical)] = values[: min(rank, numerical)]
    torch.testing.assert_close(left.T @ left, largest.diag(), **CLOSE)
    torch.testing.assert_close(right.T @ right, largest.diag(), **CLOSE)
    error = (matrix - left @ right.T).square().sum()
    torch.testing.assert_close(error, values[rank:].square().sum(), **CLOSE)
    assert not left[:, numerical:].any()


@pytest.mark.parametrize(("name", "kind", "rank"), list(product(GRAPHS, MATRICES, (1, 3, 40))))
def test_factors_are_the_best_approximation_of_their_rank(name: str, kind: str, rank: int) -> None:
    check(GRAPHS[name], kind, rank)


LARGE = {
    "random": both_ways(nx.gnp_random_graph(80, 0.08, seed=3)),
    "directed": both_ways(nx.gnp_random_graph(80, 0.08, seed=4)),
    "torus, whose values repeat": both_ways(nx.grid_2d_graph(8, 8, periodic=True)),
    "two equal cycles": both_ways(nx.disjoint_union(nx.cycle_graph(41), nx.cycle_graph(41))),
}
LARGE["directed"].edge_index = LARGE["directed"].edge_index[:, ::2]


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("name", LARGE)
def test_the_solver_of_large_components_finds_the_same(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = LARGE[name]
    called = []
    for solver in ("eigsh", "svds"):
        real = getattr(scipy.sparse.linalg, solver)
        monkeypatch.setattr(
            scipy.sparse.linalg, solver, lambda *args, real=real, **kw: called.append(real) or real(*args, **kw)
        )
    monkeypatch.setattr(truncated_svd, "DENSE", 20)
    check(graph, kind, 7)
    assert called


def test_a_matrix_that_would_be_too_large_and_an_edge_to_nowhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = GRAPHS["random"].edge_index
    monkeypatch.setattr(truncated_svd, "DENSE", 5)
    monkeypatch.setattr(truncated_svd, "MAX_DENSE", 20)
    assert svd_factors(edges, 30, 4)[0].shape == (30, 4)
    for kind, rank in (("proximity", 4), ("random_walk", 4), ("adjacency", 10)):
        with pytest.raises(
            InputError, match=f"posenc_SVD: rank {rank} of matrix {kind} needs .* take matrix adjacency"
        ):
            svd_factors(edges, 30, rank, kind)
    with pytest.raises(InputError, match="edge_index names node 29, but the graph has 20 nodes"):
        svd_factors(edges, 20, 4)
    with pytest.raises(ConfigError, match=r"posenc_SVD\.matrix: expected one of adjacency, symmetric"):
        AddEncoding("SVD", matrix="laplacian")


@pytest.mark.parametrize("sides", ["left", "both"])
def test_signs_are_flipped_in_training_alone_and_of_both_factors_at_once(
    sides: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch.from_data_list([AddEncoding("SVD", rank=4, sides=sides)(GRAPHS[name]) for name in ("path", "random")])
    batch.x = torch.randn(batch.num_nodes, 3)
    encoder = SVD(rank=4, sides=sides, dim_pe=5).encoder(12, 3)
    factors = batch.pestat_SVD.clone()
    evaluated = encoder.eval()(batch.clone()).x
    assert torch.equal(evaluated, encoder(batch.clone()).x)
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0])
    monkeypatch.setattr(truncated_svd, "random_signs", lambda *_, **__: signs)
    trained = encoder.train()(batch.clone()).x
    assert torch.equal(batch.pestat_SVD, factors)
    batch.pestat_SVD = factors * torch.cat([signs] * (1 + (sides == "both")))
    torch.testing.assert_close(trained, encoder.eval()(batch.clone()).x, rtol=1e-6, atol=1e-6)
    assert not torch.equal(trained, evaluated)
