"""Layer of the low-width method against its formula, with and without a feed-forward network, for both stages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext, SampledEdgeAttention, ScoreEstimatorAttention
from graphgps_kmip.model.spexphormer_layer import SpexphormerLayer

DIM, NODES, TARGETS = 4, 8, 5
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


class Sum(nn.Module):
    """A stand-in for an attention: adds up neighbours, and counts its calls in the state."""

    def forward(self, x: Tensor, context: GraphContext, state: int) -> tuple[Tensor, int]:
        source, target = context.edge_index
        return torch.zeros_like(x).index_add(0, target, x[source]), state + 1


def graph_norm(x: Tensor, batch: Tensor) -> Tensor:
    """GraphNorm as built: all of the mean is subtracted."""
    rows = [x[batch == graph] for graph in batch.unique()]
    return torch.cat([(one - one.mean(0)) / (one.var(0, unbiased=False) + 1e-5).sqrt() for one in rows])


def batch_norm(x: Tensor, _: Tensor | None = None) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


@pytest.mark.parametrize("ffn", [True, False])
@pytest.mark.parametrize("norm", ["batch", "graph", "none"])
def test_a_layer_on_whole_graphs_is_its_formula(norm: str, ffn: bool) -> None:
    layer = SpexphormerLayer(DIM, Sum(), norm=norm, ffn=ffn).double()
    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    context = GraphContext(batch, torch.tensor([0, 3, 8]), edge_index=torch.tensor([[0, 1, 5], [1, 1, 6]]))
    x = torch.randn(NODES, DIM, dtype=torch.double)
    out, edge_attr, states = layer(x, context, (3,))
    normalised = {"batch": batch_norm, "graph": graph_norm, "none": lambda x, _: x}[norm]
    h = normalised(x + Sum()(x, context, 0)[0], batch)
    if ffn:
        first, second = layer.ffn[0], layer.ffn[3]
        h = h + (h @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    else:
        h = h.clamp(min=0)
    torch.testing.assert_close(out, normalised(h, batch), **ROUNDING)
    assert edge_attr is None
    assert states == (4,)


@pytest.mark.parametrize("ffn", [True, False])
def test_a_layer_along_sampled_edges_returns_the_targets_and_keeps_their_residual(ffn: bool) -> None:
    attention = SampledEdgeAttention(DIM, 2)
    layer = SpexphormerLayer(DIM, attention, ffn=ffn).double()
    x, types = torch.randn(NODES, DIM, dtype=torch.double), torch.randn(3, DIM, dtype=torch.double)
    edges = torch.stack([torch.randint(0, count, (12,)) for count in (NODES, TARGETS, 3)])
    out = layer.along_sampled_edges(x, edges, TARGETS, types)
    h = batch_norm(x[:TARGETS] + attention(x, edges, TARGETS, types))
    h = h + layer.ffn(h) if ffn else h.relu()
    torch.testing.assert_close(out, batch_norm(h), **ROUNDING)


def test_dropout_is_behind_the_attention_and_twice_in_the_feed_forward_network() -> None:
    layer = SpexphormerLayer(DIM, ScoreEstimatorAttention(DIM, 1), 0.3)
    assert [module.p for module in layer.modules() if isinstance(module, nn.Dropout)] == [0.3] * 3
    calls: list[Tensor] = []
    for module in layer.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda *args: calls.append(args[2]))
    x = torch.randn(NODES, DIM)
    context = GraphContext.of(None, x)
    layer(x, context, (layer.attention[0].initial_state(context),))
    assert [call.shape for call in calls] == [(NODES, DIM), (NODES, 2 * DIM), (NODES, DIM)]


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm"):
        SpexphormerLayer(DIM, Sum(), norm="instance")
