"""Electrostatic statistics: the public code's records, a graph worked out by hand, odd graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.encoding.heat_kernel import electrostatic_statistics
from tests.recorded import TOLERANCE, load

DOUBLE = torch.float64
NO_EDGES = torch.empty(2, 0, dtype=torch.long)
TRIANGLE_AND_TAIL = torch.tensor([[0, 1, 1, 2, 2, 0, 2, 3], [1, 0, 2, 1, 0, 2, 3, 2]])


def compare(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("key", ["0", "1", "2"])
def test_statistics_match_the_public_code(key: str) -> None:
    record = load("D_stats/kernel_stats")
    edges, expected = record[f"in/edge_index_{key}"], record[f"out/ElstaticSE_{key}"]
    compare(electrostatic_statistics(edges, len(expected), dtype=DOUBLE), expected)


def test_with_an_isolated_node_they_match_the_public_code_wherever_that_is_finite_and_are_finite() -> None:
    record = load("D_stats/kernel_stats_isolated_node")
    expected = record["out/ElstaticSE_0"]
    found = electrostatic_statistics(record["in/edge_index_0"], len(expected), dtype=DOUBLE)
    assert bool(expected[:, 8:].isnan().all())  # the public code's only gaps
    compare(found[:, :8], expected[:, :8])
    assert bool(found.isfinite().all())
    assert bool(found[:-1, 8:].any())
    compare(found[-1, 9], torch.zeros((), dtype=DOUBLE))


def test_two_joined_nodes_get_the_values_worked_out_by_hand() -> None:
    # L+ = [[1, -1], [-1, 1]] / 4, so G = [[0, -1/2], [-1/2, 0]]: the columns of each node hold 0 and -1/2.
    spread = 0.125**0.5
    row = [-0.5, 0, -0.25, spread, -0.5, 0, -0.25, spread, -0.5, -0.5]
    found = electrostatic_statistics(torch.tensor([[0, 1], [1, 0]]), 2, dtype=DOUBLE)
    compare(found, torch.tensor([row, row], dtype=DOUBLE))
    compare(electrostatic_statistics(torch.tensor([[0], [1]]), 2, dtype=DOUBLE), found)  # made undirected


def test_a_component_is_weighted_as_if_it_were_alone() -> None:
    alone = electrostatic_statistics(TRIANGLE_AND_TAIL, 4, dtype=DOUBLE)
    both = torch.cat([TRIANGLE_AND_TAIL, TRIANGLE_AND_TAIL + 4], dim=1)
    compare(electrostatic_statistics(both, 9, dtype=DOUBLE)[:8, 8:], alone[:, 8:].repeat(2, 1))


def test_renumbered_nodes_get_the_same_values() -> None:
    order = torch.tensor([2, 0, 3, 1])
    before = electrostatic_statistics(TRIANGLE_AND_TAIL, 4, dtype=DOUBLE)
    compare(electrostatic_statistics(order[TRIANGLE_AND_TAIL], 4, dtype=DOUBLE)[order], before)


@pytest.mark.parametrize("num_nodes", [0, 1, 5])
def test_without_edges_every_value_is_zero(num_nodes: int) -> None:
    found = electrostatic_statistics(NO_EDGES, num_nodes)
    assert found.shape == (num_nodes, 10)
    assert found.dtype == torch.float32
    assert not found.any()
