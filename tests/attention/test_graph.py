"""The learned graph: the very weights that forward uses, collected layer by layer without a trace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import AttentionGraph, FullAttention, GraphContext, KMIPAttention, collect_attention

PTR = torch.tensor([0, 5, 5, 6, 13])
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)


@pytest.mark.parametrize("attention", [KMIPAttention(8, 2, k=4), FullAttention(8, 2)], ids=["kmip", "full"])
def test_the_graph_times_the_values_is_the_output(attention: nn.Module) -> None:
    attention = attention.double()
    x = torch.randn(13, 8, dtype=torch.float64)
    graph = attention.attention_graph(x, CONTEXT)
    v = attention.value(x) if isinstance(attention, KMIPAttention) else attention.qkv(x)[:, 16:]
    gathered = v.unflatten(1, (2, 4)).transpose(0, 1)[torch.arange(2)[:, None, None], graph.index.clamp(min=0)]
    out = attention.out(torch.einsum("hnk,hnkc->nhc", graph.weight, gathered).flatten(1))
    torch.testing.assert_close(out, attention(x, CONTEXT), rtol=1e-12, atol=1e-12)
    assert graph.weight[graph.index < 0].eq(0).all()
    assert CONTEXT.batch[graph.index].eq(CONTEXT.batch[:, None])[graph.index >= 0].all()


def test_the_graph_is_drawn_without_dropout_and_without_gradient() -> None:
    attention = KMIPAttention(8, 2, dropout=0.9)
    weight = attention.attention_graph(torch.randn(6, 8)).weight
    torch.testing.assert_close(weight.sum(-1), torch.ones(2, 6))
    assert not weight.requires_grad


def test_the_out_degree_counts_the_queries_that_select_a_node() -> None:
    index = torch.tensor([[[0, 1], [1, -1], [1, 0]], [[2, -1], [-1, -1], [2, 1]]])
    assert AttentionGraph(index, torch.zeros(2, 3, 2)).out_degree().tolist() == [[2, 3, 0], [0, 1, 2]]


class Model(nn.Module):
    """Two attentions of which the first stays in eval mode; writes into its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = KMIPAttention(8, 2, k=2), KMIPAttention(8, 2, dropout=0.5, k=3)

    def forward(self, batch: Batch) -> Tensor:
        context = GraphContext.from_data(batch)
        batch.x = self.first(batch.x, context)
        return self.last(batch.x, context=context)


def test_collecting_gives_one_graph_a_layer_and_leaves_no_trace() -> None:
    model = Model()
    model.train()
    model.last.eval()
    data = Data(x=torch.randn(5, 8), edge_index=torch.zeros(2, 0, dtype=torch.long))
    batch = Batch.from_data_list([data, data])
    x = batch.x.clone()
    graphs = collect_attention(model, batch)
    assert [graph.index.shape for graph in graphs] == [(2, 10, 3), (2, 10, 2)]
    assert torch.equal(batch.x, x)
    assert (model.training, model.first.training, model.last.training) == (True, True, False)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_collecting_restores_the_model_when_its_forward_fails() -> None:
    model = Model()
    with pytest.raises(AttributeError):
        collect_attention(model, "not a batch")
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
