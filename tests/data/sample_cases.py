"""Records of many shapes, and what every graph of a sample must be, for the tests of samples."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix
from torch_geometric.data import Data

from graphgps_kmip.data import DatasetRecord, Features, GraphDataset, Statistics
from graphgps_kmip.data.synthetic_sample import make_sample

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
