"""Heads: what is predicted, on which rows, with which labels, and the recorded ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.errors import InputError
from graphgps_kmip.model import EdgeHead, GraphHead, NodeHead, SequenceHead, prediction_heads
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.model.prediction_heads import LinearHead, linear_head_widths, mlp, san_graph_head
from graphgps_kmip.registry import components
from graphgps_kmip.task.metrics import OF_RANK, mean_over_graphs
from tests.recorded import check, load, part


def batch() -> Batch:
    graphs = [Data(x=torch.randn(n, 4), y=torch.tensor([n]), num_nodes=n) for n in (3, 1, 2)]
    return Batch.from_data_list(graphs)


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


def test_each_place_of_a_sequence_has_a_linear_map_of_its_own() -> None:
    head, whole = SequenceHead(4, 7, length=3, pooling="add"), batch()
    whole.y = torch.arange(9).reshape(3, 3)
    pred, true = head(whole)
    assert pred.shape == (3, 3, 7)
    assert torch.equal(true, whole.y)
    for graph, data in enumerate(whole.to_data_list()):
        for place, linear in enumerate(head.graph_pred_linear_list):
            torch.testing.assert_close(pred[graph, place], linear(data.x.sum(0)))


RECORDS = {
    "head_linear_graph_L1": (3, 1, "add", "none"),
    "head_linear_graph_add_L3": (1, 3, "add", "none"),
    "head_linear_graph_mean_L2": (10, 2, "mean", "none"),
    "head_linear_graph_mean_bn_L3": (5, 3, "mean", "batch_norm"),
    "head_linear_node_L2": (6, 2, None, "none"),
}


@pytest.mark.parametrize("file", RECORDS)
def test_outputs_and_gradients_equal_the_recorded_head(file: str) -> None:
    dim_out, layers, pooling, norm = RECORDS[file]
    head = LinearHead(8, dim_out, layers, pooling, norm=norm)
    check_recorded(head, f"F_model/{file}", lambda name: name.replace("post_pooling_norm", "norm.module"))


def check_recorded(head: nn.Module, file: str, rename: Callable[[str], str]) -> None:
    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(x=inputs["x"], batch=inputs["batch"], y=torch.zeros(1))
        batch._num_graphs = int(inputs["batch"][-1]) + 1
        return {"pred": head(batch)[0]}

    check(head.double(), forward, load(file), rename)


def test_hidden_layers_keep_the_width_or_halve_it_and_are_never_narrower_than_the_output() -> None:
    assert linear_head_widths(64, 1, 3) == [64, 64, 64, 1]
    assert linear_head_widths(64, 1, 3, halve_widths=True) == [64, 32, 16, 1]
    assert linear_head_widths(8, 10, 2) == [8, 10, 10]
    assert linear_head_widths(64, 20, 4, halve_widths=True) == [64, 32, 20, 20, 20]


def test_hidden_rows_of_a_head_have_length_one_where_asked() -> None:
    x = torch.randn(3, 4)
    layers = mlp([4, 4, 2], l2norm=True)
    hidden = layers[0](x).relu()
    torch.testing.assert_close(layers(x), layers[-1](hidden / hidden.norm(dim=1, keepdim=True).clamp(min=1e-12)))
    assert not any(isinstance(module, UnitRows) for module in mlp([4, 4, 2]).modules())
    for head in (GraphHead(4, 2, 2, l2norm=True), NodeHead(4, 2, 2, l2norm=True)):
        assert any(isinstance(module, UnitRows) for module in head.modules())


def test_the_class_token_is_read_in_place_of_the_nodes() -> None:
    head, graphs = LinearHead(4, 2, pooling="cls_token"), batch()
    with pytest.raises(InputError, match="class_token to ppgt.node_features"):
        head(graphs)
    graphs.class_token = torch.randn(3, 4)
    torch.testing.assert_close(head(graphs)[0], head.mlp(graphs.class_token))


def test_of_one_graph_divided_by_masks_only_the_nodes_of_the_split_are_predicted() -> None:
    head, graphs = LinearHead(4, 2, pooling=None), batch()
    graphs.y = torch.arange(6)
    everything, labels = head(graphs)
    assert torch.equal(labels, graphs.y)
    graphs.train_mask = torch.tensor([True, False, False, True, False, True])
    graphs.val_mask, graphs.split = ~graphs.train_mask, "train"
    pred, labels = head(graphs)
    assert labels.tolist() == [0, 3, 5]
    torch.testing.assert_close(pred, everything[graphs.train_mask])
    graphs.split = "val"
    assert head(graphs)[1].tolist() == [1, 2, 4]
    graphs.y = torch.arange(3)
    assert len(LinearHead(4, 2)(graphs)[0]) == 3, "a graph is predicted from all of its nodes"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinearHead(4, 2, 0), "gnn.layers_post_mp 0"),
        (
            lambda: LinearHead(4, 2, norm="batchnorm"),
            "post_pooling_norm: unknown name 'batchnorm'. Did you mean batch_",
        ),
        (lambda: san_graph_head(3, 1), "gnn.dim_inner is 3: set it to 4 or more"),
        (lambda: san_graph_head(8, 1, "median"), "model.graph_pooling"),
        (lambda: EdgeHead(4, decoding="euclid"), "unknown model.edge_decoding 'euclid': choose one of dot"),
        (lambda: EdgeHead(4)(batch()), "edge_label_index"),
    ],
)
def test_what_cannot_be_built_or_called_is_refused_by_key(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(("pooling", "pool"), [("add", torch.sum), ("mean", torch.mean), ("max", torch.amax)])
def test_a_graph_is_predicted_from_its_pooled_nodes(pooling: str, pool: object) -> None:
    head, whole = san_graph_head(4, 2, pooling), batch()
    pred, true = head(whole)
    assert true.tolist() == [3, 1, 2]
    first, _, second, _, last = head.mlp
    assert [layer.in_features for layer in (first, second, last)] == [4, 2, 1]
    for i, graph in enumerate(whole.to_data_list()):
        pooled = pool(graph.x, dim=0)
        torch.testing.assert_close(pred[i], last(second(first(pooled).relu()).relu()))


@pytest.mark.parametrize(("halvings", "dim_out"), [(1, 3), (2, 1)])
def test_outputs_and_gradients_equal_the_recorded_head_of_grit(halvings: int, dim_out: int) -> None:
    def rename(name: str) -> str:
        _, number, rest = name.split(".")
        return f"mlp.{2 * int(number)}.{rest}"

    check_recorded(san_graph_head(8, dim_out, "add", halvings), f"G_grit/head_san_graph_L{halvings}", rename)


@pytest.mark.parametrize(("pooling", "pool"), [("graph_token", lambda x: x[0]), ("mean", lambda x: x.mean(0))])
def test_the_head_of_graphormer_normalises_nodes_then_pools_then_maps(pooling: str, pool: Any) -> None:
    head, whole = GraphHead(4, 3, pooling=pooling, node_norm=True), batch()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    for row, graph in zip(head(whole)[0], whole.to_data_list(), strict=True):
        normed = F.layer_norm(graph.x, (4,), head.norm.weight, head.norm.bias)
        torch.testing.assert_close(row, head.mlp[0](pool(normed)))


def test_the_token_is_the_first_node_and_graphs_without_nodes_give_zeros() -> None:
    x = torch.arange(1.0, 7.0)[:, None].requires_grad_()
    pooled = components("pooling")["graph_token"](x, torch.tensor([1, 1, 1, 3, 4, 4]), 6)
    assert pooled[:, 0].tolist() == [0, 1, 0, 4, 5, 0]
    pooled.sum().backward()
    assert x.grad[:, 0].tolist() == [1, 0, 0, 1, 1, 0]


DIM = 4
# Positive and negative pairs of each graph: several tails of one head, both directions, a self-loop, one positive
# only, none at all, none labelled, a graph of one node.
RANKED = (
    (6, [(0, 1), (0, 3), (2, 5), (5, 2)], [(1, 0), (4, 4)]),
    (5, [(3, 4)], [(0, 1), (1, 2), (2, 3)]),
    (4, [], [(0, 1)]),
    (3, [], []),
    (1, [(0, 0)], []),
    (7, [(6, 6), (6, 0), (1, 2)], []),
)


def labelled_graph(
    num_nodes: int, positive: list[tuple[int, int]], negative: list[tuple[int, int]], **attributes: Tensor
) -> Data:
    pairs = torch.tensor(positive + negative, dtype=torch.long).reshape(-1, 2).T
    label = torch.tensor([1] * len(positive) + [0] * len(negative), dtype=torch.long)
    x = attributes.get("x", torch.randn(num_nodes, DIM, dtype=torch.float64))
    order = torch.randperm(len(label))  # positive and negative pairs come mixed
    return Data(x=x, num_nodes=num_nodes, edge_label_index=pairs[:, order], edge_label=label[order])


def labelled_batch() -> Batch:
    return Batch.from_data_list([labelled_graph(*sizes) for sizes in RANKED])


def by_hand(data: Data, scores: Tensor) -> Tensor:
    pairs = list(zip(*data.edge_label_index.tolist(), data.edge_label.tolist(), strict=True))
    positive = {(i, j) for i, j, label in pairs if label}
    rows = []
    for i, j, label in pairs:
        everyone = [v for v in range(data.num_nodes) if v != j]
        filtered = [v for v in everyone if (i, v) not in positive]
        ranks = [
            1 + sum(1.0 * (scores[i, v] > scores[i, j]) + 0.5 * (scores[i, v] == scores[i, j]) for v in others)
            for others in (everyone, filtered, [v for v in filtered if v != i])
        ]
        rows.append([sum(label for *_, label in pairs), *ranks] if label else [0.0] * 4)
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


def all_scores(head: EdgeHead, x: Tensor, decoding: str) -> Tensor:
    first, second = (t.reshape(-1, DIM) for t in (x[:, None].expand(-1, len(x), -1), x.expand(len(x), -1, -1)))
    if decoding == "concat":
        return head.mlp(torch.cat([first, second], dim=1)).reshape(len(x), len(x))
    first, second = head.mlp(first), head.mlp(second)
    scores = F.cosine_similarity(first, second) if decoding == "cosine_similarity" else (first * second).sum(-1)
    return scores.reshape(len(x), len(x))


@pytest.mark.parametrize("decoding", ["dot", "cosine_similarity", "concat"])
@pytest.mark.parametrize("chunk", [2**20, 3])
def test_logits_and_ranks_are_those_counted_by_hand(decoding: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_heads, "PAIRS", chunk)
    head, whole = EdgeHead(DIM, 2, decoding).double().eval(), labelled_batch()
    expected = []
    for data in whole.to_data_list():
        scores = all_scores(head, data.x, decoding).detach()
        logits = scores[data.edge_label_index[0], data.edge_label_index[1]]
        expected.append(torch.cat([logits[:, None], by_hand(data, scores)], dim=1))
    pred, true = head(whole)
    torch.testing.assert_close(pred, torch.cat(expected))
    assert torch.equal(true, whole.edge_label)
    assert pred[true == 1, 2].unique().numel() > 2, "the ranks differ among themselves"


def test_equal_scores_share_the_mean_of_their_places() -> None:
    head = EdgeHead(1, 1)
    head.mlp = torch.nn.Identity()
    x = torch.tensor([[1.0], [2.0], [2.0], [2.0], [5.0]])
    pred, _ = head(Batch.from_data_list([labelled_graph(5, [(0, 1)], [], x=x)]))
    assert pred[0].tolist() == [2.0, 1.0, 3.0, 3.0, 3.0]  # after 5, in the middle of three


def test_predictions_and_ranks_match_the_recorded_original() -> None:
    record = load("E_metrics/mrr_graphgps")
    inputs = part(record, "in")
    head = EdgeHead(8, 1, "dot", ranked=True).double().eval()
    old = "layer_post_mp.model.0.model."
    head.load_state_dict({key.replace(old, "mlp.0."): value for key, value in part(record, "state").items()})
    labelled_batch = Data(x=inputs["x"], edge_label_index=inputs["edge_index_labeled"], edge_label=inputs["edge_label"])
    labelled_batch.ptr = torch.cat([torch.zeros(1, dtype=torch.long), inputs["batch"].bincount().cumsum(0)])
    score, true = head(labelled_batch)
    score = score.detach()
    torch.testing.assert_close(score[:, 0], record["out/pred"])
    torch.testing.assert_close(true.long(), record["out/label"].long())
    for name, (value, _) in OF_RANK.items():
        # The original counts 0 for the third graph, which has no positive pair; ours leaves it out.
        mean = mean_over_graphs(2, value)(score, true, 0.5) * 2 / 3
        assert mean == pytest.approx(float(record[f"out/{name}"]))
