"""Layers without attention, and the rows of length 1 that GraphGym's layers leave."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSModel, GraphHead, NodeHead, input_layers
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.model.prediction_heads import mlp
from graphgps_kmip.mpnn import GCN, GINE, GatedGCN

DIM = 4
CONVS = {
    "gcn": lambda: GNNLayer(GCN(DIM), nn.GELU, 0.1, residual=True),
    "gine": lambda: GNNLayer(GINE(DIM), nn.ReLU),
    "gated": lambda: GNNLayer(GatedGCN(DIM)),
}


def graph(nodes: int, edges: int, dtype: torch.dtype = torch.float64) -> Data:
    return Data(
        x=torch.randn(nodes, DIM, dtype=dtype),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, DIM, dtype=dtype),
        y=torch.tensor([0]),
    )


def model(kind: str, recompute: bool = False) -> GPSModel:
    layers = [CONVS[kind]() for _ in range(2)]
    return GPSModel(
        FeatureEncoder(DIM, None, None),
        layers,
        NodeHead(DIM, 3),
        input_layers(DIM, 1, l2norm=True),
        recompute=recompute,
    ).double()


def test_a_layer_is_convolution_activation_dropout_and_residual() -> None:
    data = Batch.from_data_list([graph(5, 9)])
    context = GraphContext.from_data(data)
    conv = GINE(DIM).double()
    wanted = conv(data.x, data.edge_index, data.edge_attr)[0]
    states = (object(),)
    x, edge_attr, passed = GNNLayer(conv, nn.Tanh, residual=True)(data.x, context, states)
    torch.testing.assert_close(x, data.x + wanted.tanh())
    assert edge_attr is data.edge_attr
    assert passed is states
    torch.testing.assert_close(GNNLayer(conv)(data.x, context)[0], wanted)
    dropped = GNNLayer(conv, nn.Sigmoid, dropout=1.0, residual=True)
    assert torch.equal(dropped(data.x, context)[0], data.x)
    torch.testing.assert_close(dropped.eval()(data.x, context)[0], data.x + wanted.sigmoid())


def test_new_edge_features_reach_the_next_layer() -> None:
    network, data = model("gated").eval(), Batch.from_data_list([graph(5, 9)])
    before = network(data.clone())[0]
    with torch.no_grad():
        network.layers[0].conv.C.weight += 1.0
        network.layers[0].conv.D.weight.zero_(), network.layers[0].conv.B.weight.zero_()
    assert not torch.equal(before, network(data.clone())[0])
    seen = []
    network.head.register_forward_pre_hook(lambda _, given: seen.append(given[0].edge_attr))
    network(data)
    assert not torch.equal(seen[0], data.edge_attr)


@pytest.mark.parametrize("kind", CONVS)
def test_a_graph_alone_equals_the_graph_in_a_batch(kind: str) -> None:
    network, graphs = model(kind).eval(), [graph(5, 9), graph(1, 0), graph(3, 0), graph(4, 7)]
    whole, _ = network(Batch.from_data_list(graphs))
    alone = [network(Batch.from_data_list([one]))[0] for one in graphs]
    torch.testing.assert_close(torch.cat(alone), whole)


@pytest.mark.parametrize("kind", CONVS)
def test_permuted_nodes_and_edges_permute_the_output(kind: str) -> None:
    network, data = model(kind).train(), graph(6, 12)
    network.layers[0].dropout.p = network.layers[1].dropout.p = 0.0
    order, edges = torch.randperm(6), torch.randperm(12)
    place = order.argsort()
    moved = Data(x=data.x[order], edge_index=place[data.edge_index][:, edges], edge_attr=data.edge_attr[edges])
    torch.testing.assert_close(
        network(Batch.from_data_list([moved]))[0], network(Batch.from_data_list([data]))[0][order]
    )


@pytest.mark.parametrize("kind", CONVS)
def test_a_batch_of_one_node_trains(kind: str) -> None:
    pred, _ = model(kind).train()(Batch.from_data_list([graph(1, 0)]))
    pred.sum().backward()
    assert pred.isfinite().all()


@pytest.mark.parametrize("kind", CONVS)
def test_layers_computed_again_give_the_same_gradients(kind: str) -> None:
    torch.manual_seed(1)
    network = model(kind).train()
    again = copy.deepcopy(network)
    again.recompute = True
    data = Batch.from_data_list([graph(5, 9), graph(2, 2)])
    for one in (network, again):
        torch.manual_seed(2)
        one(data.clone())[0].square().sum().backward()
    for wanted, found in zip(network.parameters(), again.parameters(), strict=True):
        assert (wanted.grad is None) == (found.grad is None)
        if wanted.grad is not None:
            torch.testing.assert_close(found.grad, wanted.grad)


def test_gradients_of_a_layer_are_right() -> None:
    data = Batch.from_data_list([graph(4, 6), graph(1, 0)])
    layer, context = GNNLayer(GINE(DIM), nn.Tanh, residual=True).double(), GraphContext.from_data(data)

    def of(x: Tensor, edge_attr: Tensor) -> Tensor:
        return layer(x, context.with_edge_attr(edge_attr))[0]

    assert torch.autograd.gradcheck(of, (data.x.requires_grad_(), data.edge_attr.requires_grad_()))


def test_eval_repeats_itself_and_leaves_its_inputs_alone() -> None:
    network, data = model("gcn").eval(), Batch.from_data_list([graph(5, 9)])
    x, edge_attr = data.x.clone(), data.edge_attr.clone()
    kept_x, kept_edges = data.x, data.edge_attr
    assert torch.equal(network(data.clone())[0], network(data.clone())[0])
    network(data)
    assert torch.equal(kept_x, x)
    assert torch.equal(kept_edges, edge_attr)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_numbers_stay_close_to_wide_ones(dtype: torch.dtype) -> None:
    network, data = model("gine").eval(), Batch.from_data_list([graph(6, 12)])
    wanted, _ = network(data.clone())
    narrow = data.clone()
    narrow.x, narrow.edge_attr = data.x.to(dtype), data.edge_attr.to(dtype)
    found, _ = network.to(dtype)(narrow)
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


def test_rows_have_length_one_and_zeros_stay_zeros() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-3, 0.0]], dtype=torch.float64, requires_grad=True)
    scaled = UnitRows()(x)
    torch.testing.assert_close(scaled, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    scaled.sum().backward()
    assert x.grad.isfinite().all()


def test_input_layers_take_the_data_at_its_own_width() -> None:
    x = torch.randn(5, 7)
    layers = input_layers(4, 2, norm=False, l2norm=True, dim_in=7)
    first, second = layers[0], layers[4]
    hidden = first(x).relu()
    hidden = hidden / hidden.norm(dim=1, keepdim=True).clamp(min=1e-12)
    wanted = second(hidden).relu()
    wanted = wanted / wanted.norm(dim=1, keepdim=True).clamp(min=1e-12)
    torch.testing.assert_close(layers(x), wanted)
    plain = input_layers(4, 2, norm=False, dim_in=7)
    plain.load_state_dict({key: layers.state_dict()[key.replace("3.", "4.")] for key in plain.state_dict()})
    torch.testing.assert_close(plain(x), second(first(x).relu()).relu())


def test_hidden_rows_of_a_head_have_length_one_where_asked() -> None:
    x = torch.randn(3, DIM)
    layers = mlp(DIM, 2, 2, l2norm=True)
    hidden = layers[0](x).relu()
    torch.testing.assert_close(layers(x), layers[-1](hidden / hidden.norm(dim=1, keepdim=True).clamp(min=1e-12)))
    assert not any(isinstance(module, UnitRows) for module in mlp(DIM, 2, 2).modules())
    for head in (GraphHead(DIM, 2, 2, l2norm=True), NodeHead(DIM, 2, 2, l2norm=True)):
        assert any(isinstance(module, UnitRows) for module in head.modules())
