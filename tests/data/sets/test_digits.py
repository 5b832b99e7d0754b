"""The embedded digits: real images as point clouds with k-nearest-neighbour graphs."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from graphgps_kmip.data import DatasetInfo, GraphDataset, find, open_dataset
from graphgps_kmip.encoding import KNNGraph

RECORD = find("sklearn", "digits")
FIRSTS = [[2, 3, 5, 6, 7], [0, 1, 11, 21, 24], [4, 10, 17, 28, 32]]  # first indices of training, validation and test


@pytest.fixture(scope="module")
def digits() -> GraphDataset:
    return open_dataset(RECORD, root="a folder that is never made")


def test_the_measured_facts_are_those_of_the_record(digits: GraphDataset) -> None:
    info = DatasetInfo.of(digits, RECORD)
    assert (info.dim_in, info.dim_edge, info.dim_out) == (3, 0, 10)
    assert info.sizes == (1078, 359, 360)
    assert info.directed
    assert len(digits) == RECORD.statistics.graphs
    assert round(info.mean_nodes, 2) == RECORD.statistics.mean_nodes
    assert round(info.mean_edges, 2) == RECORD.statistics.mean_edges


def test_a_point_cloud_can_be_drawn_back_into_its_image(digits: GraphDataset) -> None:
    source = load_digits()
    for number in (0, 7, 1796):
        graph = digits[number]
        column, row = ((graph.pos * torch.tensor([1, -1]) + 1) * 4 - 0.5).long().T
        image = torch.zeros(8, 8)
        image[row, column] = graph.x[:, 2] * 16
        torch.testing.assert_close(image, torch.from_numpy(source.images[number]).float(), rtol=0, atol=0)
        assert graph.y.tolist() == [source.target[number]]
        torch.testing.assert_close(graph.x[:, :2], graph.pos)


def test_every_pixel_has_eight_in_edges_and_the_graph_can_be_made_again_from_pos(digits: GraphDataset) -> None:
    for graph in digits.graphs[:20]:
        assert torch.bincount(graph.edge_index[1]).tolist() == [8] * graph.num_nodes
        torch.testing.assert_close(KNNGraph(8)(graph).edge_index, graph.edge_index)


def test_the_split_is_stratified_and_never_changes(digits: GraphDataset) -> None:
    labels = torch.cat([graph.y for graph in digits.graphs])
    for part, share in zip(digits.splits, (0.6, 0.2, 0.2), strict=True):
        expected = share * torch.bincount(labels)
        assert (torch.bincount(labels[part]) - expected).abs().max() <= 1.2  # rounded twice, by 0.6 at most
    firsts = [part[:5].tolist() for part in digits.splits]
    assert firsts == FIRSTS, "a new split would make old results incomparable"
