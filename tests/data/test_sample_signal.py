"""Samples hide the values that decide the labels where two layers of message passing do not hear of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components, shortest_path
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile

from graphgps_kmip.data import DatasetInfo, Features, Statistics
from graphgps_kmip.data.sample_graphs import LEAVES, clusters, tailed
from graphgps_kmip.data.synthetic_sample import make_sample
from tests.data.sample_cases import RECORDS, adjacency, record_of, sample_of


def test_the_beacon_of_a_tailed_graph_is_five_hops_or_more_from_the_body() -> None:
    rng = np.random.default_rng(0)
    for nodes, edges in ((8, 7), (60, 59), (60, 240), (60, 5000)):
        shape = tailed(rng, nodes, edges)
        graph = Data(edge_index=torch.from_numpy(shape.edges), num_nodes=nodes)
        hops = shortest_path(adjacency(graph), directed=False, unweighted=True)[shape.beacon[0]]
        assert hops[shape.body].min() == 5
        assert np.isfinite(hops).all()


def test_a_leaf_is_three_hops_from_its_landmark_and_further_from_the_others() -> None:
    shape = clusters(np.random.default_rng(0), 600, 3000)
    graph = Data(edge_index=torch.from_numpy(shape.edges), num_nodes=600)
    assert shape.edges.shape == (2, 3000)
    hops = shortest_path(adjacency(graph), directed=False, unweighted=True)[shape.beacon]  # (U, N)
    own = np.arange(len(shape.beacon))[:, None] == shape.unit
    assert (hops[:, shape.body][own[:, shape.body]] == 3).all()
    assert hops[:, shape.body][~own[:, shape.body]].min() >= 4
    assert shape.body.sum() == LEAVES * len(shape.beacon)


@pytest.mark.parametrize("name", ["molecules", "trees", "contact"])
def test_labels_follow_from_the_values_of_nodes_and_beacon_modulo_three(name: str) -> None:
    codewords: dict[int, torch.Tensor] = {}
    for graph in sample_of(name).graphs:
        symbol = graph.x[:, 0]
        assert (symbol >= 3).nonzero().tolist() == [[graph.num_nodes - 1]]
        own, beacon = symbol[:-1], int(symbol[-1]) - 3
        if RECORDS[name].level == "link":
            first, second = graph.edge_label_index
            kept = (first < len(own)) & (second < len(own))
            linked = (own[first[kept]] + own[second[kept]] + beacon) % 3 == 0
            assert torch.equal(linked.long(), graph.edge_label[kept])
            continue
        value = (int(own.bincount(minlength=3).argmax()) + beacon) % 3
        if name == "trees":
            assert graph.y.tolist() == [value]
        assert torch.equal(codewords.setdefault(value, graph.y), graph.y)
    assert RECORDS[name].level == "link" or len({str(word.tolist()) for word in codewords.values()}) == 3


def test_every_node_of_an_inductive_sample_adds_its_own_value_to_the_beacons() -> None:
    record = replace(RECORDS["regions"], features=Features((28,), classes=21))
    for graph in make_sample(record).graphs:
        own, beacon = graph.x[:-1, 0], graph.x[-1, 0] - 3
        assert torch.equal(graph.y[:-1], (own + beacon) % 3)


def test_features_that_are_derived_show_the_values_in_the_structure() -> None:
    record = record_of("MalNet", Features(5, classes=5), Statistics(5000, 1410.3, 2859.9, directed=True))
    sample = make_sample(record, featurize=LocalDegreeProfile())
    info = DatasetInfo.of(sample, record)
    assert (info.dim_in, info.directed) == (5, True)
    assert (info.mean_nodes, info.mean_edges / info.mean_nodes) == pytest.approx((60, 2.03), rel=0.05)
    hubs = set()
    for graph in sample.graphs[:30]:
        degree = graph.edge_index.flatten().bincount()
        pendant = graph.edge_index[0, degree[graph.edge_index[1]] == 1].bincount()  # of each node
        hubs.add(int(pendant.max()))
        assert set(pendant.unique().tolist()) <= {0, 1, 2, int(pendant.max())}
        assert torch.equal(graph.x[:, 0], graph.edge_index[0].bincount(minlength=graph.num_nodes).float())
        assert connected_components(adjacency(graph), directed=False)[0] == 1
        assert "num_nodes" not in graph.to_dict()  # x tells it
    assert hubs == {6, 10, 14}  # the beacons


def test_a_divided_sample_of_derived_features_labels_pendant_nodes_as_their_unit() -> None:
    record = record_of("proteins", Features(5, classes=5), Statistics(1, 900, 9000), level="node")
    (graph,) = make_sample(record, featurize=LocalDegreeProfile()).graphs
    assert graph.num_nodes == pytest.approx(900, rel=0.05)
    one = graph.edge_index[:, torch.bincount(graph.edge_index[1])[graph.edge_index[1]] == 1]
    assert one.size(1) > 100  # pendant nodes and landmarks
    assert torch.equal(graph.y[one[0]], graph.y[one[1]])
    assert torch.equal(graph.train_mask[one[0]], graph.train_mask[one[1]])
