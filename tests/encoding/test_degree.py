"""Degrees and the local degree profile."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile

from graphgps_kmip.encoding.degree import local_degree_profile, out_degrees

EDGES = torch.tensor([[0, 0, 0, 1, 1, 2, 2], [1, 2, 3, 0, 2, 0, 2]])  # node 3 has no successor, node 4 no edge at all


def test_out_degrees_count_the_edges_that_leave_a_node() -> None:
    assert out_degrees(EDGES, 5).tolist() == [3, 2, 2, 0, 0]


def test_the_profile_holds_the_degree_and_statistics_of_the_successors_degrees() -> None:
    found = local_degree_profile(EDGES, 5, dtype=torch.float64)
    expected = [
        [3, 0, 2, 4 / 3, (8 / 9) ** 0.5],  # successors have 2, 2 and 0
        [2, 2, 3, 2.5, 0.5],  # 3 and 2
        [2, 2, 3, 2.5, 0.5],  # 3 and, by its loop, 2
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_the_profile_is_that_of_torch_geometric() -> None:
    edges = torch.randint(50, (2, 300), generator=torch.Generator().manual_seed(0))
    expected = LocalDegreeProfile()(Data(edge_index=edges, num_nodes=60)).x
    torch.testing.assert_close(local_degree_profile(edges, 60), expected, rtol=1e-5, atol=1e-5)


def test_a_graph_without_edges_or_nodes_has_an_empty_profile() -> None:
    nothing = torch.empty(2, 0, dtype=torch.long)
    assert not local_degree_profile(nothing, 3).any()
    assert local_degree_profile(nothing, 0).shape == (0, 5)
