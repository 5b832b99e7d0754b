"""Samples follow the schema of any record, depend on a seed alone, and hide what decides the labels."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import connected_components, shortest_path
from torch_geometric.data import Data
from torch_geometric.transforms import LocalDegreeProfile

from graphgps_kmip.data import DatasetInfo, DatasetRecord, Features, GraphDataset, Statistics, synthetic_sample
from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.splits import open_dataset, sampled
from graphgps_kmip.data.synthetic_sample import LEAVES, UNIT, clusters, make_sample, tailed
from graphgps_kmip.encoding.knn import knn_graph

ATOMS, BONDS = (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2)


def record_of(
    name: str,
    features: Features | None,
    statistics: Statistics | None = None,
    task_type: str = "classification",
    level: str = "graph",
) -> DatasetRecord:
    return DatasetRecord(
        "Toy", lambda _root: [], task_type, name, level=level, features=features, statistics=statistics
    )


RECORDS = {
    record.name: record
    for record in (
        record_of("images", Features(9, classes=10), Statistics(60000, 117.6, 941.1, directed=True)),
        record_of(
            "regions", Features(14, 2, 21), Statistics(11355, 479.4, 2710.5, directed=False), level="inductive_node"
        ),
        record_of(
            "molecules",
            Features(ATOMS, BONDS, 10),
            Statistics(15535, 150.9, 307.3, directed=False),
            "classification_multilabel",
        ),
        record_of("zinc", Features((28,), (4,)), Statistics(12000, 23.2, 24.9, True, False), "regression"),
        record_of("trees", Features((98, 10030), 2, 5002), Statistics(99, 125.2, 124.2, False, True)),
        record_of(
            "code", Features((98, 10030), 2, 99), Statistics(99, 125.2, 124.2, False, True), "subtoken_prediction"
        ),
        record_of("contact", Features(ATOMS, BONDS), Statistics(529434, 30.1, 61.0), "link_ranking", "link"),
        record_of("web", Features(767, classes=10), Statistics(1, 13752, 491722, directed=False), level="node"),
        record_of("city", Features(67, classes=10), Statistics(1, 114127, 182511, True, False), level="node"),
        record_of("arxiv", Features(128, classes=40), Statistics(1, 169343, 1166243, directed=True), level="node"),
        record_of("yelp", Features(300, classes=100), Statistics(1, 716847, 1e7), "classification_multilabel", "node"),
        record_of(
            "rooms", Features(9, classes=13, positions=3), Statistics(23585, 4096, 131072), level="inductive_node"
        ),
        record_of("meshes", Features(3, classes=10, positions=3), Statistics(4899, 9508.2, 76065.6)),
        record_of("distances", Features(3, 1, 10, positions=2), Statistics(70000, 70.6, 564.5, directed=True)),
        record_of("apart", Features(1, classes=2, positions=2), Statistics(300, 20, 60)),
        record_of("places", Features(5, classes=3, positions=2), Statistics(1, 300, 1200), level="node"),
        record_of("untold", Features((1,), 7, 37), Statistics(158100, 243.4, 2266.1)),
        record_of("unknown", Features(4, classes=5)),
        record_of("papers", Features(128), Statistics(3, 235868, 1179052, True), "link_prediction", "link"),
        record_of("shapes", Features(3, classes=40, positions=3), Statistics(12311, 17744.4, directed=True)),
    )
}
DIVIDED = [name for name, record in RECORDS.items() if record.level == "node"]
CLOUDS = [name for name, record in RECORDS.items() if record.features.positions and record.level != "node"]


@cache
def sample_of(name: str) -> GraphDataset:
    return make_sample(RECORDS[name])


def adjacency(graph: Data) -> csr_matrix:
    ends = tuple(graph.edge_index.numpy())
    return coo_matrix((np.ones(graph.num_edges), ends), (graph.num_nodes, graph.num_nodes)).tocsr()


def check_columns(value: torch.Tensor, schema: int | tuple[int, ...], rows: int) -> None:
    if isinstance(schema, int):
        assert (value.dtype, value.shape) == (torch.float32, (rows, schema))
        assert value.isfinite().all()
    else:
        assert (value.dtype, value.shape) == (torch.int64, (rows, len(schema)))
        assert (value >= 0).all()
        assert (value < torch.tensor(schema)).all()


def check_labels(graph: Data, record: DatasetRecord) -> None:
    classes, rows = record.features.classes, 1 if record.level == "graph" else graph.num_nodes
    if record.level == "link":
        pairs, label = graph.edge_label_index, graph.edge_label
        assert (pairs.shape, label.shape, label.dtype) == ((2, 44), (44,), torch.int64)
        assert label.tolist() == 4 * [1, *[0] * 10]
        assert 0 <= pairs.min() <= pairs.max() < graph.num_nodes
        assert (pairs[0] != pairs[1]).all()
    elif record.task_type == "subtoken_prediction":
        assert (graph.y.dtype, graph.y.shape) == (torch.int64, (rows, 5))
        assert 0 <= graph.y.min() <= graph.y.max() < classes
    elif record.task_type == "classification":
        assert (graph.y.dtype, graph.y.shape) == (torch.int64, (rows,))
        assert 0 <= graph.y.min() <= graph.y.max() < classes
    else:
        assert (graph.y.dtype, graph.y.shape) == (torch.float32, (rows, classes))
        binary = record.task_type == "classification_multilabel"
        assert ((graph.y == 0) | (graph.y == 1)).all() if binary else (graph.y.abs() <= 1).all()


def check_schema(graph: Data, record: DatasetRecord) -> None:
    features = record.features
    check_columns(graph.x, features.node, graph.num_nodes)
    assert graph.edge_index.dtype == torch.int64
    assert 0 <= graph.edge_index.min() <= graph.edge_index.max() < graph.num_nodes
    if features.edge:
        check_columns(graph.edge_attr, features.edge, graph.num_edges)
    if features.positions:
        check_columns(graph.pos, features.positions, graph.num_nodes)
        if isinstance(features.node, int) and features.node >= features.positions:
            assert torch.equal(graph.x[:, -features.positions :], graph.pos)
    assert not graph.has_self_loops()
    assert graph.is_coalesced() or len(torch.unique(graph.edge_index, dim=1)[0]) == graph.num_edges
    check_labels(graph, record)


@pytest.mark.parametrize("name", RECORDS)
def test_every_graph_follows_the_schema_of_its_record(name: str) -> None:
    for graph in sample_of(name).graphs:
        check_schema(graph, RECORDS[name])


@pytest.mark.parametrize("name", RECORDS)
def test_a_sample_passes_the_checks_of_data_and_has_about_the_published_degree(name: str) -> None:
    record = RECORDS[name]
    info = DatasetInfo.of(sample_of(name), record)
    assert info.dim_out == record.features.classes or record.level == "link"
    total = sum(info.sizes)
    assert [size / total for size in info.sizes] == pytest.approx([0.6, 0.2, 0.2], abs=0.02)
    statistics = record.statistics or Statistics(300, 30, 120)
    assert info.directed == bool(statistics.directed or name in CLOUDS)
    twice = 2 if statistics.edges_once and not statistics.directed else 1
    edges = statistics.mean_edges or 8 * statistics.mean_nodes
    degree = min(edges / statistics.mean_nodes * twice, 16 if name in DIVIDED else 40)
    degree = round(degree) if name in CLOUDS else degree
    # Pendant nodes leave too few others for so many edges where features tell nothing.
    assert info.mean_edges / info.mean_nodes == pytest.approx(degree, rel=0.2 if name == "untold" else 0.08)
    assert info.mean_nodes <= (1500 if name in DIVIDED else 63 if name != "rooms" else 140)


@pytest.mark.parametrize("name", DIVIDED)
def test_each_node_of_one_graph_is_in_one_part_and_units_are_never_parted(name: str) -> None:
    (graph,) = sample_of(name).graphs
    masks = torch.stack([graph[f"{split}_mask"] for split in SPLITS])
    assert (masks.sum(0) == 1).all()
    units = masks.float().unflatten(1, (-1, UNIT)).mean(2)
    assert set(units.unique().tolist()) == {0, 1}


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in CLOUDS])
def test_drawn_graphs_are_connected(name: str) -> None:
    for graph in sample_of(name).graphs[:40]:
        assert connected_components(adjacency(graph), directed=False)[0] == 1


@pytest.mark.parametrize("name", CLOUDS)
def test_a_point_cloud_has_the_k_nearest_neighbour_graph_of_its_positions(name: str) -> None:
    statistics = RECORDS[name].statistics
    k = round(statistics.mean_edges / statistics.mean_nodes) if statistics.mean_edges else 8
    for graph in sample_of(name).graphs[:20]:
        assert torch.equal(graph.edge_index, knn_graph(graph.pos, k))
        first, last = graph.edge_index
        apart = graph.num_nodes - k - 1
        assert ((first < apart) == (last < apart)).all()  # no edge between the body and the beacon's k + 1 points
        if RECORDS[name].features.edge == 1:
            distance = (graph.pos[first] - graph.pos[last]).norm(dim=1, keepdim=True)
            torch.testing.assert_close(graph.edge_attr, distance)


def same(left: GraphDataset, right: GraphDataset) -> bool:
    pairs = zip(left.graphs, right.graphs, strict=True)
    return all(a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a.keys()) for a, b in pairs)  # noqa: SIM118


@pytest.mark.usefixtures("small_samples")
def test_a_shorter_sample_is_the_first_graphs_of_each_split() -> None:
    whole, part = (open_dataset(sampled(RECORDS["molecules"], number)) for number in (0, 10))
    assert [len(split) for split in part.splits] == [6, 2, 2]
    for name in SPLITS:
        for graph, expected in zip(part.part(name), whole.part(name), strict=False):
            assert torch.equal(graph.edge_index, expected.edge_index)
            assert torch.equal(graph.y, expected.y)
    assert len(open_dataset(sampled(RECORDS["molecules"], 30))) == len(whole) == 30
    assert len(open_dataset(sampled(RECORDS[DIVIDED[0]], 10))) == 1


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("name", ["regions", "molecules", "contact", "meshes", "web"])
def test_a_sample_depends_on_seed_and_key_alone_and_leaves_global_generators_be(name: str) -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = make_sample(RECORDS[name])
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert same(first, make_sample(RECORDS[name]))
    other = make_sample(RECORDS[name], seed=1)
    assert len(other) != len(first) or not same(first, other)
    assert not same(first, make_sample(replace(RECORDS[name], name="other")))


def test_a_record_without_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Toy/blank: a sample needs its features: give the record features=Features"):
        make_sample(record_of("blank", None))
    with pytest.raises(ValueError, match=r"Toy/bare: nodes have no features: call make_sample with featurize="):
        make_sample(record_of("bare", Features(0)))


SCHEMAS = st.one_of(st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=4).map(tuple))
SIZES = st.builds(
    Statistics,
    graphs=st.integers(1, 60),
    mean_nodes=st.floats(2, 200),
    mean_edges=st.one_of(st.none(), st.floats(1, 2000)),
    edges_once=st.booleans(),
    directed=st.sampled_from((None, False, True)),
)


@settings(max_examples=15, deadline=None)
@given(
    st.builds(Features, SCHEMAS, st.one_of(st.just(0), SCHEMAS), st.integers(2, 50), st.integers(0, 3)),
    st.one_of(st.none(), SIZES),
    st.sampled_from(("classification", "classification_multilabel", "regression")),
    st.sampled_from(("graph", "inductive_node", "node")),
    st.integers(0, 3),
)
def test_any_record_has_a_sample(
    features: Features, statistics: Statistics | None, task_type: str, level: str, seed: int
) -> None:
    record = record_of("any", features, statistics, task_type, level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_sample, "MAX_GRAPHS", 30)
        sample = make_sample(record, seed)
    for graph in sample.graphs[:3]:
        check_schema(graph, record)
    assert DatasetInfo.of(sample, record).dim_in == sample.graphs[0].x.size(1)


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
    node_values = np.arange(len(shape.beacon))[:, None] == shape.unit
    assert (hops[:, shape.body][node_values[:, shape.body]] == 3).all()
    assert hops[:, shape.body][~node_values[:, shape.body]].min() >= 4
    assert shape.body.sum() == LEAVES * len(shape.beacon)


@pytest.mark.parametrize("name", ["molecules", "trees", "contact"])
def test_labels_follow_from_the_values_of_nodes_and_beacon_modulo_three(name: str) -> None:
    codewords: dict[int, torch.Tensor] = {}
    for graph in sample_of(name).graphs:
        symbol = graph.x[:, 0]
        assert (symbol >= 3).nonzero().tolist() == [[graph.num_nodes - 1]]
        node_values, beacon = symbol[:-1], int(symbol[-1]) - 3
        if RECORDS[name].level == "link":
            first, second = graph.edge_label_index
            stored = (first < len(node_values)) & (second < len(node_values))
            linked = (node_values[first[stored]] + node_values[second[stored]] + beacon) % 3 == 0
            assert torch.equal(linked.long(), graph.edge_label[stored])
            continue
        value = (int(node_values.bincount(minlength=3).argmax()) + beacon) % 3
        if name == "trees":
            assert graph.y.tolist() == [value]
        assert torch.equal(codewords.setdefault(value, graph.y), graph.y)
    assert RECORDS[name].level == "link" or len({str(word.tolist()) for word in codewords.values()}) == 3


def test_every_node_of_an_inductive_sample_adds_its_own_value_to_the_beacons() -> None:
    record = replace(RECORDS["regions"], features=Features((28,), classes=21))
    for graph in make_sample(record).graphs:
        node_values, beacon = graph.x[:-1, 0], graph.x[-1, 0] - 3
        assert torch.equal(graph.y[:-1], (node_values + beacon) % 3)


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
