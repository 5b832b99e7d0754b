"""SAN's layer: its formula, where its norms and its dropout stand, and the laws of a stack."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.model import FeatureEncoder, GPSModel, GraphHead, NodeHead
from graphgps_kmip.model.san_layer import SANLayer

DIM, HEADS = 6, 2


def graph(nodes: int, edges: int) -> Data:
    edge_index = torch.randint(0, nodes, (2, edges))
    x, edge_attr = torch.randn(nodes, DIM).double(), torch.randn(edges, DIM).double()
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=torch.tensor([0]))


def graphs() -> list[Data]:
    torch.manual_seed(0)
    return [graph(5, 9), graph(1, 0), graph(3, 0), graph(4, 7)]


def model(head: type[nn.Module] = NodeHead, recompute: bool = False, separate: bool = False) -> GPSModel:
    torch.manual_seed(1)
    layers = [SANLayer(DIM, SANAttention(DIM, HEADS, gamma=0.3, separate=separate)) for _ in range(2)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, head(DIM, 3), recompute=recompute).double().eval()


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("layer_norm", "batch_norm"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_layer_is_attention_and_linear_maps_with_residuals_and_norms(
    layer_norm: bool, batch_norm: bool, residual: bool
) -> None:
    data = Batch.from_data_list(graphs())
    context = GraphContext.from_data(data)
    attention = SANAttention(DIM, HEADS, gamma=0.3)
    layer = SANLayer(DIM, attention, layer_norm=layer_norm, batch_norm=batch_norm, residual=residual).double()
    state = attention.initial_state(context)

    def norm(x: Tensor) -> Tensor:
        if layer_norm:  # of single nodes
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() if batch_norm else x

    x = norm(residual * data.x + attention(data.x, context, state)[0])
    first, _, _, second = layer.ffn
    x = norm(residual * x + second(first(x).relu()))
    found, edge_attr, states = layer(data.x, context, (state,))
    torch.testing.assert_close(found, x)
    assert edge_attr is data.edge_attr
    assert states[0] is state


def test_dropout_stands_inside_the_linear_maps_and_not_behind_them() -> None:
    data = Batch.from_data_list(graphs())
    context = GraphContext.from_data(data)
    layer = SANLayer(DIM, SANAttention(DIM, HEADS), dropout=1.0, batch_norm=False, residual=False).double()
    x, _, _ = layer(data.x, context, (layer.attention[0].initial_state(context),))
    torch.testing.assert_close(x, layer.ffn[-1].bias.expand_as(x))


def test_the_feature_of_other_pairs_exists_once_in_a_model() -> None:
    network = model()
    names = [name for name, _ in network.named_parameters() if "initial_state" in name]
    assert names == ["layers.0.attention.0.initial_state.feature.weight"]
    data = Batch.from_data_list(graphs())
    before, _ = network(data.clone())
    with torch.no_grad():
        network.layers[0].attention[0].out.weight.zero_()  # the first layer does not see the feature any more
    without, _ = network(data.clone())
    with torch.no_grad():
        network.layers[0].attention[0].initial_state.feature.weight += 1.0
    assert not torch.equal(before, without)
    assert not torch.equal(network(data.clone())[0], without)


@pytest.mark.parametrize("separate", [False, True])
def test_a_graph_alone_equals_the_graph_in_a_batch(separate: bool) -> None:
    network = model(GraphHead, separate=separate)
    together, _ = network(Batch.from_data_list(graphs()))
    alone = [network(Batch.from_data_list([one]))[0] for one in graphs()]
    torch.testing.assert_close(torch.cat(alone), together)


def test_layers_computed_again_give_the_same_gradients() -> None:
    network, again = model().train(), model(recompute=True).train()
    data = Batch.from_data_list(graphs())
    for one in (network, again):
        one(data.clone())[0].square().sum().backward()
    for wanted, found in zip(network.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)


def test_a_batch_of_one_node_trains_and_inputs_stay_as_they_are() -> None:
    network, data = model().train(), Batch.from_data_list([graph(1, 0)])
    x, before = data.x, data.x.clone()
    pred, _ = network(data)
    pred.sum().backward()
    assert pred.isfinite().all()
    assert torch.equal(x, before)
    twin = copy.deepcopy(network)
    twin.load_state_dict(network.state_dict())
    again = Batch.from_data_list(graphs())
    assert torch.equal(twin.eval()(again.clone())[0], network.eval()(again.clone())[0])
