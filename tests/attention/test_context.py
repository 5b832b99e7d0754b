"""GraphContext: made from a batch vector, nothing, or torch_geometric data; wrong vectors are refused."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.context import complete_pairs
from graphgps_kmip.common.node_pairs import all_pairs
from graphgps_kmip.errors import InputError

X = torch.ones(5, 3)


def graph(num_nodes: int) -> Data:
    edges = torch.zeros(2, 2, dtype=torch.long)
    return Data(
        x=torch.ones(num_nodes, 3),
        edge_index=edges,
        expander_edge_index=edges + 1,
        expander_edge_attr=torch.ones(2, 4),
        pair_index=edges,
        pair_attr=torch.ones(2, 6),
    )


def test_a_batch_vector_becomes_a_context_and_a_context_stays_itself() -> None:
    context = GraphContext.of(torch.tensor([0, 0, 2, 2, 2]), X)
    assert context.ptr.tolist() == [0, 2, 2, 5]
    assert context.sizes.tolist() == [2, 0, 3]
    assert (context.num_graphs, context.max_nodes, context.min_nodes) == (3, 3, 0)
    assert GraphContext.of(context, X) is context


def test_without_a_batch_vector_all_nodes_are_one_graph() -> None:
    context = GraphContext.of(None, X)
    assert context.ptr.tolist() == [0, 5]
    assert context.batch.tolist() == [0] * 5


def test_a_batch_without_nodes_has_no_graph() -> None:
    context = GraphContext.of(torch.zeros(0, dtype=torch.long), X[:0])
    assert (context.num_graphs, context.max_nodes, context.min_nodes) == (0, 0, 0)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.tensor([0, 1, 0, 1, 1]), "must be non-decreasing"),
        (torch.tensor([-1, 0, 0, 1, 1]), "start at 0 or above"),
        (torch.tensor([0, 0, 1]), "x has 5 nodes but the batch vector has 3"),
        (torch.tensor([0.0, 0, 1, 1, 1]), "of torch.float32"),
        (torch.zeros(5, 1, dtype=torch.long), r"shape \(5, 1\)"),
    ],
)
def test_a_wrong_batch_vector_is_refused(batch: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphContext.of(batch, X)


def test_a_context_of_other_nodes_is_refused() -> None:
    with pytest.raises(ValueError, match="x has 5 nodes but the batch vector has 4"):
        GraphContext.of(GraphContext.of(None, X[:4]), X)


def test_a_torch_geometric_batch_hands_over_all_that_attentions_read() -> None:
    batch = Batch.from_data_list([graph(3), graph(0), graph(2)])
    batch.progress, batch.epoch = 0.25, 7
    context = GraphContext.from_data(batch)
    assert context.ptr.tolist() == [0, 3, 3, 5]
    assert context.batch.tolist() == [0, 0, 0, 2, 2]
    assert context.edge_index is batch.edge_index
    assert (context.progress, context.epoch) == (0.25, 7)
    assert context.pair_index.tolist() == [[0, 0, 3, 3, 3, 3]] * 2
    assert context.pair_attr.shape == (6, 6)
    assert list(context.edge_sets) == ["expander"]
    assert context.edge_sets["expander"][0].tolist() == [[1, 1, 4, 4, 4, 4]] * 2
    assert context.edge_sets["expander"][1].shape == (6, 4)


@pytest.mark.parametrize(("given", "training", "evaluating"), [(None, 0.0, 1.0), (0.0, 0.0, 0.0), (0.3, 0.3, 0.3)])
def test_the_progress_that_nobody_set_is_that_of_the_mode(
    given: float | None, training: float, evaluating: float
) -> None:
    batch = Batch.from_data_list([graph(3)])
    if given is not None:
        batch.progress = given
    context = GraphContext.from_data(batch)
    assert (context.progress_in(True), context.progress_in(False)) == (training, evaluating)


@pytest.mark.parametrize("given", [None, 0, 3])
def test_outside_of_a_training_there_is_no_epoch(given: int | None) -> None:
    data = graph(4)
    assert GraphContext.from_data(data).epoch is None
    data.epoch = given
    assert GraphContext.from_data(data).epoch == given
    edges = GraphContext.from_data(data).with_edge_attr(torch.ones(2, 3))
    assert edges.epoch == given


def test_data_that_is_one_graph_needs_no_batch_vector() -> None:
    context = GraphContext.from_data(graph(4))
    assert context.ptr.tolist() == [0, 4]
    assert context.edge_sets["expander"][1].shape == (2, 4)


def test_data_with_a_batch_vector_alone_gets_its_boundaries() -> None:
    data = graph(4)
    data.batch = torch.tensor([0, 1, 1, 1])
    assert GraphContext.from_data(data).ptr.tolist() == [0, 1, 4]
    data.batch = torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="non-decreasing"):
        GraphContext.from_data(data)


def test_all_pairs_are_listed_graph_by_graph_and_query_by_query() -> None:
    ptr = torch.tensor([0, 2, 2, 5])
    wanted = [(i, j) for first, end in ((0, 2), (2, 2), (2, 5)) for i in range(first, end) for j in range(first, end)]
    assert all_pairs(ptr).T.tolist() == [list(pair) for pair in wanted]


def test_complete_pairs_scatters_a_list_adds_repeated_pairs_and_refuses_a_wrong_number_of_rows() -> None:
    ptr, batch = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 0, 2, 2, 2])
    index = torch.tensor([[4, 0, 4], [2, 1, 2]])
    attr = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    full = complete_pairs(GraphContext(batch, ptr, pair_index=index, pair_attr=attr))
    wanted = torch.zeros(13, 2)
    for (query, key), row in zip(index.T.tolist(), attr, strict=True):
        wanted[all_pairs(ptr).T.tolist().index([query, key])] += row
    assert torch.equal(full, wanted)
    assert complete_pairs(GraphContext(batch, ptr, pair_attr=full)) is full
    for bad in (GraphContext(batch, ptr, pair_attr=attr), GraphContext(batch, ptr, pair_index=index)):
        with pytest.raises(InputError, match="pair"):
            complete_pairs(bad)
