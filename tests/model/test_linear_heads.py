"""Heads of PPGT equal the recorded ones, have the widths of the public models, and refuse what they cannot read."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.errors import ConfigError, InputError
from graphgps_kmip.model.linear_heads import LinearHead, linear_mlp
from tests.recorded import check, load

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
    record = load(f"F_model/{file}")
    head = LinearHead(8, dim_out, layers, pooling, norm=norm).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(x=inputs["x"], batch=inputs["batch"], y=torch.zeros(1))
        batch._num_graphs = int(inputs["batch"][-1]) + 1
        return {"pred": head(batch)[0]}

    check(head, forward, record, lambda name: name.replace("post_pooling_norm", "norm.module"))


def widths(mlp: nn.Sequential) -> list[tuple[int, int]]:
    return [(one.in_features, one.out_features) for one in mlp if isinstance(one, nn.Linear)]


def test_hidden_layers_keep_the_width_or_halve_it_and_are_never_narrower_than_the_output() -> None:
    assert widths(linear_mlp(64, 1, 3)) == [(64, 64), (64, 64), (64, 1)]
    assert widths(linear_mlp(64, 1, 3, halve_widths=True)) == [(64, 32), (32, 16), (16, 1)]
    assert widths(linear_mlp(8, 10, 2)) == [(8, 10), (10, 10)]
    assert widths(linear_mlp(64, 20, 4, halve_widths=True)) == [(64, 32), (32, 20), (20, 20), (20, 20)]
    assert sum(p.numel() for p in linear_mlp(64, 1, 3, halve_widths=True).parameters()) == 2625


def graphs() -> Batch:
    torch.manual_seed(0)
    return Batch.from_data_list([Data(x=torch.randn(n, 4), y=torch.tensor([n]), num_nodes=n) for n in (2, 3, 4)])


def test_batch_norm_of_the_outputs_centres_them_in_training() -> None:
    pred, _ = LinearHead(4, 2, 2, out_bn=True).train()(graphs())
    torch.testing.assert_close(pred.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    assert (pred.var(0, unbiased=False) > 0.9).all(), "1 but for the epsilon"


def test_dropout_comes_before_the_first_layer() -> None:
    head = LinearHead(4, 2, 1, dropout=0.9999)
    torch.testing.assert_close(head(graphs())[0], head.mlp[0].bias.expand(3, 2))


def test_the_class_token_is_read_in_place_of_the_nodes() -> None:
    head, batch = LinearHead(4, 2, pooling="cls_token"), graphs()
    with pytest.raises(InputError, match="class_token to ppgt.node_features"):
        head(batch)
    batch.class_token = torch.randn(3, 4)
    torch.testing.assert_close(head(batch)[0], head.mlp(batch.class_token))


def test_of_one_graph_divided_by_masks_only_the_nodes_of_the_split_are_predicted() -> None:
    head, batch = LinearHead(4, 2, pooling=None), graphs()
    batch.y = torch.arange(9)
    everything, labels = head(batch)
    assert torch.equal(labels, batch.y)
    batch.train_mask = torch.tensor([True, False, False, True, False, True, False, False, False])
    batch.val_mask, batch.split = ~batch.train_mask, "train"
    found, labels = head(batch)
    assert labels.tolist() == [0, 3, 5]
    torch.testing.assert_close(found, everything[batch.train_mask])
    batch.split = "val"
    assert head(batch)[1].tolist() == [1, 2, 4, 6, 7, 8]
    batch.y = torch.arange(3)
    assert len(LinearHead(4, 2)(batch)[0]) == 3, "a graph is predicted from all of its nodes"


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(InputError, match="gnn.layers_post_mp 0"):
        LinearHead(4, 2, 0)
    with pytest.raises(ConfigError, match="post_pooling_norm: unknown name 'batchnorm'. Did you mean batch_norm"):
        LinearHead(4, 2, norm="batchnorm")
