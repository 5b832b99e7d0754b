"""Facts derived from data, and the mistakes in a user's data that they uncover."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, Features, GraphDataset


def info_of(
    dataset: GraphDataset, task_type: str = "classification", level: str = "graph", classes: int = 0
) -> DatasetInfo:
    features = Features(node=2, classes=classes) if classes else None
    record = DatasetRecord("Mine", lambda _root: dataset, task_type, level=level, features=features)
    return DatasetInfo.of(dataset, record)


def test_the_facts_of_a_graph_data_set(rings: Callable[[int], GraphDataset]) -> None:
    info = info_of(rings(6))  # 3, 4, 5, 6, 3, 4 nodes and as many edges
    assert (info.dim_in, info.dim_edge, info.dim_out) == (2, 0, 2)
    assert info.sizes == (4, 1, 1)
    assert (info.mean_nodes, info.max_nodes, info.mean_edges) == (25 / 6, 6, 25 / 6)
    assert info.directed
    rows = dict(info.describe())
    assert rows["graphs (train / val / test)"] == "4 / 1 / 1"
    assert rows["edges of a graph"] == "4.2 on average, directed"
    assert rows["features"] == "2 of a node, none of an edge"


def test_the_facts_of_one_divided_graph(divided: Data) -> None:
    divided.edge_attr = torch.ones(10)
    divided.edge_index = torch.cat([divided.edge_index[:, :5], divided.edge_index[:, :5].flip(0)], dim=1)
    info = info_of(GraphDataset([divided]), level="node")
    assert info.sizes == (6, 2, 1)
    assert (info.dim_in, info.dim_edge, info.dim_out) == (3, 1, 3)
    assert not info.directed


def test_classes_are_counted_over_all_splits_and_by_the_largest_label(rings: Callable[[int], GraphDataset]) -> None:
    dataset = rings(6)
    dataset.graphs[5].y[0] = 8  # the test graph
    assert info_of(dataset).dim_out == 9
    assert info_of(dataset, classes=12).dim_out == 12
    with pytest.raises(ValueError, match="label 8 found, but its record says 3 classes"):
        info_of(dataset, classes=3)


def test_every_node_of_an_inductive_data_set_has_a_label(rings: Callable[[int], GraphDataset]) -> None:
    dataset = rings(5)
    with pytest.raises(ValueError, match=r"Mine, graph 0: y must have shape \(3,\), got \(1,\)"):
        info_of(dataset, level="inductive_node")
    for graph in dataset.graphs:
        graph.y = torch.arange(graph.num_nodes)
    assert info_of(dataset, level="inductive_node").dim_out == 6


MISTAKES = {
    "x is missing": ("x", None),
    "y is missing": ("y", None),
    "edge_index must be int64": ("edge_index", None),
    "edge_index names nodes outside 0..4": ("edge_index", torch.tensor([[0], [5]])),
    r"edge_attr has 2 rows for 5 edges": ("edge_attr", torch.ones(2, 1)),
    "features must be": ("x", torch.ones(5, 2, 2)),
    r"y must have shape \(1,\), got \(1, 3\)": ("y", torch.ones(1, 3)),
    "class labels must be whole": ("y", torch.tensor([float("nan")])),
    "class labels must be whole numbers from": ("y", torch.tensor([0.5])),
    "graphs differ in the columns of x: 7 here, 2 in Mine, graph 0": ("x", torch.ones(5, 7)),
    "x holds NaN in row 3, column 0": ("x", torch.tensor([[0.0], [1.0], [2.0], [float("nan")], [4.0]])),
    "edge_attr holds an infinite value in row 0": ("edge_attr", torch.full((5, 1), float("inf"))),
    "pos holds NaN in row 0, column 0 .10 of 10 values.": ("pos", torch.full((5, 2), float("nan"))),
    "x must be a dense tensor of real numbers, got sparse_coo": ("x", torch.ones(5, 1).to_sparse()),
    "graph 2: y holds class 1,000,000, and there are 3 different labels": ("y", torch.tensor([1_000_000])),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_one_graph_names_data_set_and_fix(message: str, rings: Callable[[int], GraphDataset]) -> None:
    dataset = rings(6)
    key, value = MISTAKES[message]
    dataset.graphs[2][key] = value
    with pytest.raises(ValueError, match=f"^Mine.*{message}") as caught:
        info_of(dataset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (None, "not divided"),
        (([0, 1], [], [2]), "the val split is empty"),
        (([0, 1], [2], [3]), "the test split names graphs outside 0..2"),
        (([0, 1], [1], [2]), "in the splits more than once"),
    ],
)
def test_a_mistake_in_the_splits_names_the_data_set(
    splits: tuple | None, message: str, rings: Callable[[int], GraphDataset]
) -> None:
    with pytest.raises(ValueError, match=f"^Mine: .*{message}"):
        info_of(GraphDataset(rings(3).graphs, splits))


def test_what_cannot_be_read_names_the_graph(rings: Callable[[int], GraphDataset]) -> None:
    class Torn(list):
        def __getitem__(self, number: int) -> Data:
            if number == 2:
                raise EOFError("the file ends here")
            return super().__getitem__(number)

    dataset = rings(6)
    with pytest.raises(DataError, match=r"^Mine, graph 2 cannot be read \(EOFError: the file ends here\)"):
        info_of(GraphDataset(Torn(dataset.graphs), dataset.splits))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_target_that_is_not_a_number_is_refused_unless_the_record_says_that_some_are_unknown(
    value: float, rings: Callable[[int], GraphDataset]
) -> None:
    dataset = rings(5)
    for graph in dataset.graphs:
        graph.y = torch.tensor([[0.5]])
    dataset.graphs[1].y = torch.tensor([[value]])
    with pytest.raises(DataError, match=r"^Mine, graph 1: y holds (NaN|an infinite value) in row 0, column 0"):
        info_of(dataset, "regression")
    unknown = DatasetRecord("mine", load=list, task_type="regression", title="Mine", unknown_targets=True)
    with nullcontext() if value != value else pytest.raises(DataError, match="y holds an infinite value"):
        DatasetInfo.of(dataset, unknown)


def test_masks_that_are_missing_empty_or_overlap_are_refused(
    rings: Callable[[int], GraphDataset], divided: Data
) -> None:
    with pytest.raises(ValueError, match="Mine: level 'node' needs one graph with train_mask"):
        info_of(GraphDataset(rings(3).graphs[:1]), level="node")
    divided.test_mask = torch.arange(10) == 1
    with pytest.raises(ValueError, match=r"node 1 of Mine is in the splits more than once \(train and test\)"):
        info_of(GraphDataset([divided]), level="node")
    divided.test_mask = torch.zeros(10, dtype=torch.bool)
    with pytest.raises(ValueError, match="Mine: the test split is empty"):
        info_of(GraphDataset([divided]), level="node")
