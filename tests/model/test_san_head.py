"""The head of SAN: its widths, its pooling and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.model.san_layer import san_graph_head, shrinking_mlp
from tests.recorded import check, load


def batch() -> Batch:
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(n, 12), y=torch.tensor([n]), num_nodes=n) for n in (3, 1, 2)]
    return Batch.from_data_list(graphs)


@pytest.mark.parametrize(("dim", "widths"), [(56, [56, 28, 14]), (84, [84, 42, 21]), (30, [30, 15, 7])])
def test_every_layer_halves_the_width_rounded_down(dim: int, widths: list[int]) -> None:
    linear = [module for module in san_graph_head(dim, 10).mlp if isinstance(module, nn.Linear)]
    assert [layer.in_features for layer in linear] == widths
    assert [layer.out_features for layer in linear] == [*widths[1:], 10]
    parameters = sum(a * b + b for a, b in zip(widths, [*widths[1:], 10], strict=True))
    assert sum(parameter.numel() for parameter in san_graph_head(dim, 10).parameters()) == parameters


@pytest.mark.parametrize(("pooling", "pool"), [("add", torch.sum), ("mean", torch.mean), ("max", torch.amax)])
def test_a_graph_is_predicted_from_its_pooled_nodes(pooling: str, pool: object) -> None:
    head, whole = san_graph_head(12, 2, pooling), batch()
    pred, true = head(whole)
    assert true.tolist() == [3, 1, 2]
    first, _, second, _, last = head.mlp
    for i, graph in enumerate(whole.to_data_list()):
        pooled = pool(graph.x, dim=0)
        torch.testing.assert_close(pred[i], last(second(first(pooled).relu()).relu()))


@pytest.mark.parametrize(("halvings", "dim_out"), [(1, 3), (2, 1)])
def test_outputs_and_gradients_equal_the_recorded_head_of_grit(halvings: int, dim_out: int) -> None:
    head = san_graph_head(8, dim_out, "add", halvings).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch = Batch(x=inputs["x"], batch=inputs["batch"], y=torch.zeros(1))
        batch._num_graphs = int(inputs["batch"][-1]) + 1
        return {"pred": head(batch)[0]}

    def rename(name: str) -> str:
        _, number, rest = name.split(".")
        return f"mlp.{2 * int(number)}.{rest}"

    check(head, forward, load(f"G_grit/head_san_graph_L{halvings}"), rename)


def test_the_activation_of_the_head_can_be_chosen() -> None:
    head, x = san_graph_head(12, 2, act=nn.GELU), torch.randn(3, 12)
    first, _, second, _, last = head.mlp
    gelu = nn.functional.gelu
    torch.testing.assert_close(head.mlp(x), last(gelu(second(gelu(first(x))))))


def test_gradients_of_the_layers_are_right() -> None:
    mlp = shrinking_mlp(8, 3, 2).double()
    assert torch.autograd.gradcheck(mlp, torch.randn(4, 8).double().requires_grad_())


def test_a_width_that_vanishes_and_an_unknown_pooling_are_refused_by_key() -> None:
    with pytest.raises(ValueError, match="gnn.dim_inner is 3: set it to 4 or more"):
        san_graph_head(3, 1)
    with pytest.raises(ValueError, match="model.graph_pooling"):
        san_graph_head(8, 1, "median")
