"""Partitions of a graph: all nodes once, equal sizes, and few edges cut where there is a good cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data.partition import partition
from tests.data.large import mesh, tangle


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 59, 60])
@pytest.mark.parametrize("graph", [mesh(6, 10), tangle()], ids=["mesh", "tangle"])
def test_every_node_is_in_one_part_and_sizes_differ_by_one_at_most(graph: Data, parts: int) -> None:
    found = partition(graph.edge_index, graph.num_nodes, parts)
    assert len(found) == parts
    assert sorted(np.concatenate(found)) == list(range(graph.num_nodes))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    assert all((np.diff(part) > 0).all() for part in found)


def test_a_road_is_cut_once_between_neighbouring_parts() -> None:
    shuffled = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    road = torch.stack([shuffled[:-1], shuffled[1:]])
    part = np.empty(1000, dtype=int)
    for number, nodes in enumerate(partition(road, 1000, 8)):
        part[nodes] = number
    assert (part[road[0]] != part[road[1]]).sum() == 7


def test_a_mesh_is_cut_much_less_than_by_random_parts() -> None:
    graph = mesh(40, 40)
    part = np.empty(graph.num_nodes, dtype=int)
    for number, nodes in enumerate(partition(graph.edge_index, graph.num_nodes, 16)):
        part[nodes] = number
    source, target = graph.edge_index.numpy()
    assert (part[source] != part[target]).mean() < 0.25  # at random: 15 / 16


@pytest.mark.parametrize("parts", [0, 5])
def test_more_parts_than_nodes_or_none_are_refused(parts: int) -> None:
    with pytest.raises(ValueError, match=rf"4 nodes cannot be cut into {parts} parts: set train\.train_parts"):
        partition(torch.empty(2, 0, dtype=torch.long), 4, parts)
