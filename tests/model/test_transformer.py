"""Layers of transformers, Graphormer, SAN and the low-width method, against their formulas."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm
from torch_geometric.data import Batch

from graphgps_kmip.attention import ExphormerAttention, GraphContext, SampledEdgeAttention
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.model import FeatureEncoder, GPSModel, GraphormerLayer, NodeHead, TransformerLayer
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer
from graphgps_kmip.model.transformer_layers import PostNormLayer, san_norms
from tests.model.test_layer_laws import graph

DIM, HEADS = 8, 2
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def graphs() -> Batch:
    torch.manual_seed(0)
    return Batch.from_data_list([graph(5, 9), graph(1), graph(3), graph(4, 7)])


class Doubled(nn.Module):
    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        return 2 * x + context.num_graphs


def randomised(layer: nn.Module) -> nn.Module:
    """Biases and norms, too, must tell if they are left out."""
    for parameter in layer.double().parameters():
        nn.init.uniform_(parameter, -1, 1)
    return layer


def normed(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return layer_norm(x, (DIM,), norm.weight, norm.bias)


def test_a_transformer_layer_normalises_before_attention_and_feed_forward_network() -> None:
    data, layer = graphs(), randomised(TransformerLayer(DIM, Doubled()))
    h = data.x + 2 * normed(data.x, layer.attention_norm) + 4
    wide = gelu(normed(h, layer.ffn_norm) @ layer.ffn[0].weight.T + layer.ffn[0].bias)
    assert wide.shape == (13, 4 * DIM)
    x, edge_attr, states = layer(data.x, GraphContext.from_data(data))
    torch.testing.assert_close(x, h + wide @ layer.ffn[3].weight.T + layer.ffn[3].bias)
    assert edge_attr is data.edge_attr
    assert states == (None,)


def test_a_state_goes_from_layer_to_layer_and_only_the_first_one_makes_it() -> None:
    layers = [TransformerLayer(DIM, ExphormerAttention(DIM, HEADS, num_virt_node=2)) for _ in range(3)]
    network, data = GPSModel(FeatureEncoder(DIM, None, None), layers, NodeHead(DIM, 3)).double().eval(), graphs()
    context, x = GraphContext.from_data(data), data.x
    state = layers[0].attention[0].initial_state(context)
    assert not any(hasattr(layer.attention[0], "initial_state") for layer in layers[1:])
    for layer in layers:
        _, new = layer.attention[0](layer.attention_norm(x), context, state)
        x, _, (state,) = layer(x, context, (state,))
        torch.testing.assert_close(state.virtual, new.virtual)
    torch.testing.assert_close(network(data.clone())[0], network.head.mlp(x))


def graphormer_formula(layer: GraphormerLayer, x: Tensor) -> Tensor:
    middle = x + 2 * normed(x, layer.attention_norm) + 4
    hidden = gelu(normed(middle, layer.mlp[0]) @ layer.mlp[1].weight.T + layer.mlp[1].bias)
    return middle + hidden @ layer.mlp[4].weight.T + layer.mlp[4].bias


def test_a_layer_of_graphormer_is_its_formula_and_each_dropout_is_in_its_place() -> None:
    data = graphs()
    context, x, states = GraphContext.from_data(data), data.x.clone(), (object(),)
    layer = randomised(GraphormerLayer(DIM, Doubled()))
    out, edge_attr, passed = layer(x, context, states)
    torch.testing.assert_close(out, graphormer_formula(layer, x), **EXACT)
    assert edge_attr is context.edge_attr
    assert passed is states
    assert torch.equal(x, data.x)
    dropping, inside = (randomised(GraphormerLayer(DIM, Doubled(), *rates)) for rates in ((1.0, 0.0), (0.0, 1.0)))
    assert torch.equal(dropping(x, context)[0], x)
    middle = x + inside.attention[0](inside.attention_norm(x), context)
    torch.testing.assert_close(inside(x, context)[0], middle + inside.mlp[4].bias, **EXACT)
    for layer in (dropping, inside):
        torch.testing.assert_close(layer.eval()(x, context)[0], graphormer_formula(layer, x), **EXACT)


@pytest.mark.parametrize(("layer_norm", "batch_norm"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_layer_of_san_is_attention_and_linear_maps_with_residuals_and_norms(
    layer_norm: bool, batch_norm: bool
) -> None:
    data = graphs()
    context = GraphContext.from_data(data)
    attention = SANAttention(DIM, HEADS, gamma=0.3)
    norms = partial(san_norms, layer_norm=layer_norm, batch_norm=batch_norm)
    layer = PostNormLayer(DIM, attention, norms).double()
    state = attention.initial_state(context)

    def norm(x: Tensor) -> Tensor:
        if layer_norm:  # of single nodes
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return normalise_batch(x) if batch_norm else x

    x = norm(data.x + attention(data.x, context, state)[0])
    first, _, _, second = layer.ffn
    x = norm(x + second(first(x).relu()))
    out, edge_attr, states = layer(data.x, context, (state,))
    torch.testing.assert_close(out, x)
    assert edge_attr is data.edge_attr
    assert states[0] is state


NODES, TARGETS = 8, 5


class Sum(nn.Module):
    def forward(self, x: Tensor, context: GraphContext, state: int) -> tuple[Tensor, int]:
        source, target = context.edge_index
        return torch.zeros_like(x).index_add(0, target, x[source]), state + 1


def normalise_graphs(x: Tensor, batch: Tensor) -> Tensor:
    """GraphNorm as built: all of the mean is subtracted."""
    return torch.cat([normalise_batch(x[batch == graph]) for graph in batch.unique()])


def normalise_batch(x: Tensor, _: Tensor | None = None) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()


@pytest.mark.parametrize("norm", ["batch", "graph", "none"])
def test_a_layer_on_whole_graphs_is_its_formula(norm: str) -> None:
    layer = SpexphormerLayer(DIM, Sum(), norm=norm).double()
    batch = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    context = GraphContext(batch, torch.tensor([0, 3, 8]), edge_index=torch.tensor([[0, 1, 5], [1, 1, 6]]))
    x = torch.randn(NODES, DIM, dtype=torch.double)
    out, edge_attr, states = layer(x, context, (3,))
    normalise = {"batch": normalise_batch, "graph": normalise_graphs, "none": lambda x, _: x}[norm]
    h = normalise(x + Sum()(x, context, 0)[0], batch)
    first, second = layer.ffn[0], layer.ffn[3]
    h = h + (h @ first.weight.T + first.bias).clamp(min=0) @ second.weight.T + second.bias
    torch.testing.assert_close(out, normalise(h, batch), **EXACT)
    assert edge_attr is None
    assert states == (4,)


def test_a_layer_along_sampled_edges_returns_the_targets_and_keeps_their_residual() -> None:
    attention = SampledEdgeAttention(DIM, 2)
    layer = SpexphormerLayer(DIM, attention).double()
    x, types = torch.randn(NODES, DIM, dtype=torch.double), torch.randn(3, DIM, dtype=torch.double)
    edges = torch.stack([torch.randint(0, count, (12,)) for count in (NODES, TARGETS, 3)])
    out = layer.along_sampled_edges(x, edges, TARGETS, types)
    h = normalise_batch(x[:TARGETS] + attention(x, edges, TARGETS, types))
    torch.testing.assert_close(out, normalise_batch(h + layer.ffn(h)), **EXACT)
