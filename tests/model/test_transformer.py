"""Layers of whole transformers: their formulas, and the laws in a network of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import (
    BigBirdAttention,
    ExphormerAttention,
    FullAttention,
    GraphContext,
    PerformerAttention,
)
from graphgps_kmip.model import (
    AttentionLayer,
    FeatureEncoder,
    GPSLayer,
    GPSModel,
    LayerRecipe,
    NodeHead,
    TransformerLayer,
)
from graphgps_kmip.mpnn import GINE

DIM, HEADS = 8, 2
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "performer": lambda: TransformerLayer(DIM, PerformerAttention(DIM, HEADS, dim_head=4, use_bias=True), 0.1),
    "exphormer": lambda: TransformerLayer(DIM, ExphormerAttention(DIM, HEADS, num_virt_node=2)),
    "big_bird": lambda: AttentionLayer(BigBirdAttention(DIM, HEADS, 0.1, num_random_blocks=1)),
    "single": lambda: GPSLayer(DIM, None, FullAttention(DIM, HEADS), 0.1, "layer", recipe=LayerRecipe(ffn=False)),
}


def graph(nodes: int, edges: int = 0) -> Data:
    return Data(
        x=torch.randn(nodes, DIM, dtype=torch.float64),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, DIM, dtype=torch.float64),
        y=torch.tensor([0]),
    )


def model(kind: str, **options: Any) -> GPSModel:
    torch.manual_seed(2)
    layers = [LAYERS[kind]() for _ in range(3)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, NodeHead(DIM, 3), **options).double().eval()


class Doubled(nn.Module):
    """An attention whose formula a test can write down."""

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        return 2 * x + context.num_graphs


def test_a_transformer_layer_normalises_before_attention_and_feed_forward_network() -> None:
    data, layer = Batch.from_data_list([graph(5, 9), graph(2, 1)]), TransformerLayer(DIM, Doubled()).double()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -1, 1)
    first, second = layer.attention_norm, layer.ffn_norm
    h = data.x + 2 * layer_norm(data.x, (DIM,), first.weight, first.bias) + 2
    wide = gelu(layer_norm(h, (DIM,), second.weight, second.bias) @ layer.ffn[0].weight.T + layer.ffn[0].bias)
    assert wide.shape == (7, 4 * DIM)
    x, edge_attr, states = layer(data.x, GraphContext.from_data(data))
    torch.testing.assert_close(x, h + wide @ layer.ffn[3].weight.T + layer.ffn[3].bias)
    assert edge_attr is data.edge_attr
    assert states == (None,)


def test_the_feed_forward_network_has_the_dropout_and_activation_it_is_given() -> None:
    layer = TransformerLayer(DIM, Doubled(), 0.25, nn.Tanh)
    assert isinstance(layer.ffn[1], nn.Tanh)
    assert layer.ffn[2].p == 0.25


def test_an_attention_layer_is_its_attention() -> None:
    data = Batch.from_data_list([graph(5, 9), graph(2, 1)])
    context = GraphContext.from_data(data)
    x, edge_attr, _ = AttentionLayer(Doubled())(data.x, context)
    assert torch.equal(x, 2 * data.x + 2)
    assert edge_attr is data.edge_attr


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_a_gps_layer_without_feed_forward_network_is_activation_of_its_branches(norm: str) -> None:
    data = Batch.from_data_list([graph(5, 9), graph(2, 1)])
    context, conv = GraphContext.from_data(data), GINE(DIM).double()
    layer = GPSLayer(DIM, conv, Doubled(), norm=norm, act=nn.Tanh, recipe=LayerRecipe(ffn=False)).double()
    branches = conv(data.x, data.edge_index, data.edge_attr)[0] + data.x, 3 * data.x + 2
    wanted = sum(norm(h, context) for norm, h in zip((*layer.local_norm, *layer.attention_norm), branches, strict=True))
    torch.testing.assert_close(layer(data.x, context)[0], wanted.tanh())
    assert not any(isinstance(module, nn.Linear) for name, module in layer.named_modules() if "ffn" in name)


@pytest.mark.parametrize("layer", ["exphormer", "single"])
def test_a_state_goes_from_layer_to_layer(layer: str) -> None:
    network, data = model("exphormer"), Batch.from_data_list([graph(5, 9), graph(2, 1)])
    context, x = GraphContext.from_data(data), data.x
    if layer == "single":
        attentions = [one.attention[0] for one in network.layers]
        network.layers = nn.ModuleList(
            GPSLayer(DIM, None, one, norm="none", recipe=LayerRecipe(ffn=False)) for one in attentions
        )
    state = network.layers[0].attention[0].initial_state(context)
    assert not any(hasattr(one.attention[0], "initial_state") for one in network.layers[1:])
    for one in network.layers:
        h, new = one.attention[0](x if layer == "single" else one.attention_norm(x), context, state)
        x, _, (state,) = one(x, context, (state,))
        torch.testing.assert_close(state.virtual, new.virtual)
    torch.testing.assert_close(network(data.clone())[0], network.head.mlp(x))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_graph_alone_equals_the_graph_in_a_batch(kind: str) -> None:
    network, graphs = model(kind), [graph(14, 9), graph(1), graph(3), graph(40, 7)]
    whole, _ = network(Batch.from_data_list(graphs))
    alone = [network(Batch.from_data_list([one]))[0] for one in graphs]
    torch.testing.assert_close(torch.cat(alone), whole)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "big_bird"])  # its blocks are those of the order
def test_permuted_nodes_permute_the_output(kind: str) -> None:
    network, data, order = model(kind), graph(6, 12), torch.randperm(6)
    edges = torch.randperm(12)
    moved = Data(
        x=data.x[order], edge_index=order.argsort()[data.edge_index][:, edges], edge_attr=data.edge_attr[edges]
    )
    found, wanted = (network(Batch.from_data_list([one]))[0] for one in (moved, data))
    torch.testing.assert_close(found, wanted[order])


@pytest.mark.parametrize("kind", LAYERS)
def test_training_reaches_every_parameter_also_on_one_node(kind: str) -> None:
    network = model(kind).train()
    network(Batch.from_data_list([graph(1)]))[0].square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters() if parameter.grad is not None)
    network.zero_grad()
    network(Batch.from_data_list([graph(30, 40), graph(2)]))[0].square().sum().backward()
    silent = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    assert silent == set()


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_of_a_layer_are_right(kind: str) -> None:
    data = Batch.from_data_list([graph(4, 6), graph(1)])
    torch.manual_seed(0)
    layer, context = LAYERS[kind]().double().eval(), GraphContext.from_data(data)
    state = (layer.attention[0].initial_state(context),) if kind == "exphormer" else None
    assert torch.autograd.gradcheck(lambda x: layer(x, context, state)[0], data.x.requires_grad_())


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_computed_again_give_the_same_gradients(kind: str) -> None:
    network, data = model(kind).train(), Batch.from_data_list([graph(5, 9), graph(2, 2)])
    again = copy.deepcopy(network)
    again.recompute = True
    for one in (network, again):
        torch.manual_seed(2)
        one(data.clone())[0].square().sum().backward()
    for wanted, found in zip(network.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)


@pytest.mark.parametrize("kind", LAYERS)
def test_eval_repeats_itself_leaves_its_inputs_alone_and_survives_a_state_dict(kind: str) -> None:
    network, data = model(kind), Batch.from_data_list([graph(15, 9), graph(1)])
    x, edge_attr, keys = data.x, data.edge_attr, set(data.keys())
    before = x.clone(), edge_attr.clone()
    wanted = network(data)[0]
    assert set(data.keys()) == keys
    assert torch.equal(x, before[0])
    assert torch.equal(edge_attr, before[1])
    data.x, data.edge_attr = x, edge_attr
    assert torch.equal(network(data.clone())[0], wanted)
    other = GPSModel(FeatureEncoder(DIM, None, None), [LAYERS[kind]() for _ in range(3)], NodeHead(DIM, 3)).double()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other.eval()(data.clone())[0], wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LAYERS)
def test_narrow_numbers_stay_close_to_wide_ones(kind: str, dtype: torch.dtype) -> None:
    network, data = model(kind), Batch.from_data_list([graph(6, 12)])
    wanted = network(data.clone())[0]
    narrow = data.clone()
    narrow.x, narrow.edge_attr = data.x.to(dtype), data.edge_attr.to(dtype)
    found = network.to(dtype)(narrow)[0]
    assert found.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)
