"""Heat kernels, electrostatic statistics and degrees: records, definitions, odd graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile

from graphgps_kmip.encoding import degree_and_heat_kernel
from graphgps_kmip.encoding.degree_and_heat_kernel import (
    electrostatic_statistics,
    heat_kernel_diagonal,
    local_degree_profile,
    undirected_laplacian,
)
from tests.recorded import TOLERANCE, load

DOUBLE = torch.float64
TRIANGLE_AND_TAIL = torch.tensor([[0, 1, 1, 2, 2, 0, 2, 3], [1, 0, 2, 1, 0, 2, 3, 2]])
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def compare(actual: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "key"),
    [("kernel_stats", "0"), ("kernel_stats", "1"), ("kernel_stats", "2")] + [("kernel_stats_isolated_node", "0")],
)
def test_statistics_match_the_public_code(name: str, key: str) -> None:
    record = load(f"D_stats/{name}")
    edges, expected = record[f"in/edge_index_{key}"], record[f"out/HKdiagSE_{key}"]
    compare(heat_kernel_diagonal(edges, len(expected), range(1, 9)), expected)
    single = heat_kernel_diagonal(edges, len(expected), range(1, 9)).float()
    compare(single, record[f"f32/out/HKdiagSE_{key}"], 1e-5)


def test_it_is_the_matrix_exponential_without_the_constant_vector_of_each_component() -> None:
    edges = torch.cat([TRIANGLE_AND_TAIL, TRIANGLE_AND_TAIL[:, :6] + 4], dim=1)  # components of 4 and 3 nodes
    laplacian = undirected_laplacian(edges, 8)
    constant = torch.tensor([1 / 4] * 4 + [1 / 3] * 3 + [1], dtype=DOUBLE)
    expected = torch.stack([torch.matrix_exp(-t * laplacian).diagonal() - constant for t in (0.5, 3.0)], dim=1)
    compare(heat_kernel_diagonal(edges, 8, [0.5, 3.0]), expected)


def test_a_laplacian_has_no_loops_counts_repeated_edges_and_makes_directed_graphs_undirected() -> None:
    loop = torch.tensor([[0], [0]])
    once = undirected_laplacian(torch.tensor([[0, 1], [1, 0]]), 2)
    compare(once, torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE))
    compare(undirected_laplacian(torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), 2), 2 * once)
    compare(undirected_laplacian(torch.cat([torch.tensor([[0, 0], [1, 1]]), loop], dim=1), 2), once)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_without_edges_every_value_is_zero(num_nodes: int) -> None:
    heat = heat_kernel_diagonal(NO_EDGES, num_nodes, [1, 2])
    electrostatic = electrostatic_statistics(NO_EDGES, num_nodes)
    assert (heat.shape, electrostatic.shape) == ((num_nodes, 2), (num_nodes, 10))
    assert not heat.any()
    assert not electrostatic.any()


def test_graphs_too_large_for_a_dense_matrix_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(degree_and_heat_kernel, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="up to 3 nodes, got 4: use RWSE"):
        heat_kernel_diagonal(TRIANGLE_AND_TAIL, 4, [1])


@pytest.mark.parametrize("key", ["0", "1", "2"])
def test_electrostatic_statistics_match_the_public_code(key: str) -> None:
    record = load("D_stats/kernel_stats")
    edges, expected = record[f"in/edge_index_{key}"], record[f"out/ElstaticSE_{key}"]
    compare(electrostatic_statistics(edges, len(expected)), expected)


def test_with_an_isolated_node_they_match_the_public_code_wherever_that_is_finite_and_are_finite() -> None:
    record = load("D_stats/kernel_stats_isolated_node")
    expected = record["out/ElstaticSE_0"]
    actual = electrostatic_statistics(record["in/edge_index_0"], len(expected))
    assert bool(expected[:, 8:].isnan().all())  # the public code's only gaps
    compare(actual[:, :8], expected[:, :8])
    assert bool(actual.isfinite().all())
    assert bool(actual[:-1, 8:].any())
    compare(actual[-1, 9], torch.zeros((), dtype=DOUBLE))


def test_the_profile_is_that_of_torch_geometric() -> None:
    edges = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(0))
    expected = LocalDegreeProfile()(Data(edge_index=edges, num_nodes=60)).x
    torch.testing.assert_close(local_degree_profile(edges, 60).float(), expected, rtol=1e-5, atol=1e-5)
