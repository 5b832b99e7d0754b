"""Heads: what is predicted, on which rows, and with which labels."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Batch, Data

from graphgps_kmip.model import GraphHead, NodeHead, SequenceHead


def batch() -> Batch:
    graphs = [Data(x=torch.randn(n, 4), y=torch.tensor([n]), num_nodes=n) for n in (3, 1, 2)]
    return Batch.from_data_list(graphs)


@pytest.mark.parametrize("pooling", ["add", "mean", "max"])
def test_a_graph_is_predicted_from_its_own_nodes_only(pooling: str) -> None:
    head, whole = GraphHead(4, 2, num_layers=2, pooling=pooling).eval(), batch()
    pred, true = head(whole)
    assert pred.shape == (3, 2)
    assert true.tolist() == [3, 1, 2]
    for i, graph in enumerate(whole.to_data_list()):
        torch.testing.assert_close(head(Batch.from_data_list([graph]))[0][0], pred[i])


def test_the_pooled_nodes_are_dropped_out_in_training_where_asked() -> None:
    whole, zero = batch(), torch.zeros(3, 2)
    for input_dropout in (False, True):
        head = GraphHead(4, 2, dropout=1.0, input_dropout=input_dropout)
        linear = head.mlp[-1]
        dropped = torch.equal(head(whole)[0], zero + linear.bias)
        assert dropped == input_dropout
        assert not torch.equal(head.eval()(whole)[0], zero + linear.bias)


def test_the_transductive_head_keeps_the_nodes_of_the_split() -> None:
    head, data = NodeHead(4, 3, masked=True), batch()
    data.y = torch.arange(6)
    data.val_mask = torch.tensor([True, False, False, True, False, True])
    data.split = "val"
    pred, true = head(data)
    torch.testing.assert_close(pred, head.mlp(data.x)[data.val_mask])
    assert true.tolist() == [0, 3, 5]


def test_the_inductive_head_predicts_every_node() -> None:
    data = batch()
    data.y = torch.arange(6)
    pred, true = NodeHead(4, 3)(data)
    assert pred.shape == (6, 3)
    assert true.tolist() == list(range(6))


def test_each_place_of_a_sequence_has_a_linear_map_of_its_own() -> None:
    head, whole = SequenceHead(4, 7, length=3, pooling="add"), batch()
    whole.y = torch.arange(9).reshape(3, 3)
    pred, true = head(whole)
    assert pred.shape == (3, 3, 7)
    assert torch.equal(true, whole.y)
    for graph, data in enumerate(whole.to_data_list()):
        for place, linear in enumerate(head.graph_pred_linear_list):
            torch.testing.assert_close(pred[graph, place], linear(data.x.sum(0)))


def test_an_unknown_pooling_and_a_head_without_layers_are_refused_by_key() -> None:
    with pytest.raises(ValueError, match="model.graph_pooling"):
        GraphHead(4, 2, pooling="median")
    with pytest.raises(ValueError, match="gnn.layers_post_mp"):
        NodeHead(4, 2, num_layers=0)
