"""Heat kernel diagonals: the public code's records, the matrix exponential, odd graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding import heat_kernel
from graphgps_kmip.encoding.heat_kernel import heat_kernel_diagonal, undirected_laplacian
from tests.recorded import TOLERANCE, load

DOUBLE = torch.float64
TRIANGLE_AND_TAIL = torch.tensor([[0, 1, 1, 2, 2, 0, 2, 3], [1, 0, 2, 1, 0, 2, 3, 2]])
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def compare(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "key"),
    [("kernel_stats", "0"), ("kernel_stats", "1"), ("kernel_stats", "2")] + [("kernel_stats_isolated_node", "0")],
)
def test_statistics_match_the_public_code(name: str, key: str) -> None:
    record = load(f"D_stats/{name}")
    edges, expected = record[f"in/edge_index_{key}"], record[f"out/HKdiagSE_{key}"]
    compare(heat_kernel_diagonal(edges, len(expected), range(1, 9), dtype=DOUBLE), expected)
    compare(heat_kernel_diagonal(edges, len(expected), range(1, 9)), record[f"f32/out/HKdiagSE_{key}"], 1e-5)


def test_it_is_the_matrix_exponential_without_the_constant_vector_of_each_component() -> None:
    edges = torch.cat([TRIANGLE_AND_TAIL, TRIANGLE_AND_TAIL[:, :6] + 4], dim=1)  # components of 4 and 3 nodes
    laplacian = undirected_laplacian(edges, 8)
    constant = torch.tensor([1 / 4] * 4 + [1 / 3] * 3 + [1], dtype=DOUBLE)
    expected = torch.stack([torch.matrix_exp(-t * laplacian).diagonal() - constant for t in (0.5, 3.0)], dim=1)
    compare(heat_kernel_diagonal(edges, 8, [0.5, 3.0], dtype=DOUBLE), expected)


def test_renumbered_nodes_get_the_same_values() -> None:
    order = torch.tensor([2, 0, 3, 1])
    before = heat_kernel_diagonal(TRIANGLE_AND_TAIL, 4, [1, 2], dtype=DOUBLE)
    compare(heat_kernel_diagonal(order[TRIANGLE_AND_TAIL], 4, [1, 2], dtype=DOUBLE)[order], before)


def test_a_laplacian_has_no_loops_counts_repeated_edges_and_makes_directed_graphs_undirected() -> None:
    loop = torch.tensor([[0], [0]])
    once = undirected_laplacian(torch.tensor([[0, 1], [1, 0]]), 2)
    compare(once, torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE))
    compare(undirected_laplacian(torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]]), 2), 2 * once)
    compare(undirected_laplacian(torch.cat([torch.tensor([[0, 0], [1, 1]]), loop], dim=1), 2), once)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_without_edges_every_value_is_zero(num_nodes: int) -> None:
    found = heat_kernel_diagonal(NO_EDGES, num_nodes, [1, 2])
    assert found.shape == (num_nodes, 2)
    assert found.dtype == torch.float32
    assert not found.any()


def test_no_times_and_graphs_too_large_for_a_dense_matrix_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="kernel.times"):
        heat_kernel_diagonal(TRIANGLE_AND_TAIL, 4, [])
    monkeypatch.setattr(heat_kernel, "MAX_NODES", 3)
    with pytest.raises(ValueError, match="up to 3 nodes, got 4: use RWSE"):
        heat_kernel_diagonal(TRIANGLE_AND_TAIL, 4, [1])
