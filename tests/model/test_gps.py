"""GPS layers, layers without attention and GraphLayerNorm: formulas, edge features, states, dropped entries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import LayerNorm

from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.compat.public_faults import EdgeNormOnNodesEncoder
from graphgps_kmip.model import (
    FeatureEncoder,
    GNNLayer,
    GPSLayer,
    GPSModel,
    GraphHead,
    LayerRecipe,
    NodeHead,
    input_layers,
)
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.model.norms import GraphLayerNorm
from graphgps_kmip.mpnn import GINE, GatedGCN
from graphgps_kmip.ops.dropout import dropout


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 8)

    def forward(self, batch: Any) -> Any:
        batch.x = self.linear(batch.x)
        return batch


def model(attention: nn.Module | None = None, norm: str = "layer") -> GPSModel:
    torch.manual_seed(0)
    layers = [GPSLayer(8, GatedGCN(8), attention or KMIPAttention(8, 2, k=3), norm=norm) for _ in range(2)]
    return GPSModel(FeatureEncoder(8, Embed(), None), layers, GraphHead(8, 4)).double().eval()


def graphs(sizes: tuple[int, ...] = (5, 1, 9)) -> list[Data]:
    torch.manual_seed(1)
    made = []
    for n in sizes:
        edges = torch.randint(0, n, (2, 3 * n if n > 1 else 0))
        attr = torch.randn(edges.size(1), 8).double()
        made.append(Data(x=torch.randn(n, 3).double(), edge_index=edges, edge_attr=attr, y=torch.tensor([n])))
    return made


class AddsOne(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(x).index_add(0, edge_index[1], edge_attr), edge_attr + 1


@pytest.mark.parametrize(("chain", "difference"), [(False, 0.0), (True, 1.0)])
def test_chained_branches_read_the_edge_features_of_the_branch_before(chain: bool, difference: float) -> None:
    layer = GPSLayer(
        8, [AddsOne(), AddsOne()], None, norm="none", act=nn.ReLU, recipe=LayerRecipe(ffn=False), chain_edges=chain
    )
    context = GraphContext.from_data(Batch.from_data_list(graphs((4,))))
    x = torch.full((4, 8), 100.0).double()  # above 0, for the activation
    out, edge_attr, _ = layer(x, context)
    degree = context.edge_index[1].bincount(minlength=4)[:, None]
    sums = torch.zeros_like(x).index_add(0, context.edge_index[1], context.edge_attr)
    torch.testing.assert_close(out, 2 * x + 2 * sums + difference * degree)
    torch.testing.assert_close(edge_attr, context.edge_attr + 1 + difference)


def test_the_norm_of_edges_acts_on_nodes_where_the_fault_of_graphgym_is_repeated() -> None:
    batches = [Batch.from_data_list(graphs()) for _ in range(2)]
    kinds = FeatureEncoder, EdgeNormOnNodesEncoder
    encoders = [kind(8, Embed(), nn.Identity(), edge_norm=True) for kind in kinds]
    encoders[1].load_state_dict(encoders[0].state_dict())
    right, faulty = (encoder.double().train()(batch) for encoder, batch in zip(encoders, batches, strict=True))
    loaded = Batch.from_data_list(graphs())
    torch.testing.assert_close(right.edge_attr.mean(0), torch.zeros(8).double())
    torch.testing.assert_close(faulty.edge_attr, loaded.edge_attr, rtol=0, atol=0)
    torch.testing.assert_close(faulty.x.mean(0), torch.zeros(8).double())
    torch.testing.assert_close(right.x, encoders[0].node.linear(loaded.x))


class Counting(nn.Module):
    def initial_state(self, context: GraphContext) -> Tensor:
        return torch.zeros(context.num_graphs)

    def forward(self, x: Tensor, _context: GraphContext, state: Tensor) -> tuple[Tensor, Tensor]:
        assert (state == self.expected).all()
        return x, state + 1


def test_the_stack_threads_an_attentions_state_through_its_layers() -> None:
    network = model()
    for expected, layer in enumerate(network.layers):
        layer.attention[0] = Counting()
        layer.attention[0].expected = expected
    network(Batch.from_data_list(graphs()))


def test_a_layer_without_branches_and_an_unknown_norm_are_refused() -> None:
    with pytest.raises(ValueError, match="None\\+None"):
        GPSLayer(8, None, None)
    with pytest.raises(ValueError, match="unknown norm"):
        GPSLayer(8, GatedGCN(8), None, norm="instance")


DIM = 4


def graph(nodes: int, edges: int, dtype: torch.dtype = torch.float64) -> Data:
    return Data(
        x=torch.randn(nodes, DIM, dtype=dtype),
        edge_index=torch.randint(0, nodes, (2, edges)),
        edge_attr=torch.randn(edges, DIM, dtype=dtype),
        y=torch.tensor([0]),
    )


def test_a_layer_is_convolution_activation_dropout_and_residual() -> None:
    data = Batch.from_data_list([graph(5, 9)])
    context = GraphContext.from_data(data)
    conv = GINE(DIM).double()
    message = conv(data.x, data.edge_index, data.edge_attr)[0]
    states = (object(),)
    x, edge_attr, passed = GNNLayer(conv, nn.Tanh, residual=True)(data.x, context, states)
    torch.testing.assert_close(x, data.x + message.tanh())
    assert edge_attr is data.edge_attr
    assert passed is states
    torch.testing.assert_close(GNNLayer(conv)(data.x, context)[0], message)
    dropped = GNNLayer(conv, nn.Sigmoid, dropout=1.0, residual=True)
    assert torch.equal(dropped(data.x, context)[0], data.x)
    torch.testing.assert_close(dropped.eval()(data.x, context)[0], data.x + message.sigmoid())


def test_new_edge_features_reach_the_next_layer() -> None:
    layers, head = [GNNLayer(GatedGCN(DIM)) for _ in range(2)], NodeHead(DIM, 3)
    network = GPSModel(FeatureEncoder(DIM, None, None), layers, head, input_layers(DIM, 1, l2norm=True)).double().eval()
    data = Batch.from_data_list([graph(5, 9)])
    before = network(data.clone())[0]
    with torch.no_grad():
        network.layers[0].conv.C.weight += 1.0
        network.layers[0].conv.D.weight.zero_(), network.layers[0].conv.B.weight.zero_()
    assert not torch.equal(before, network(data.clone())[0])
    seen = []
    network.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].edge_attr))
    network(data)
    assert not torch.equal(seen[0], data.edge_attr)


def test_rows_have_length_one_and_zeros_stay_zeros() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-3, 0.0]], dtype=torch.float64, requires_grad=True)
    scaled = UnitRows()(x)
    torch.testing.assert_close(scaled, torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    scaled.sum().backward()
    assert x.grad.isfinite().all()


N, WIDTH, P = 400, 8, 0.3
CONTEXT = GraphContext(torch.zeros(N, dtype=torch.long), torch.tensor([0, N]), torch.zeros(2, 0, dtype=torch.long))


class Message(nn.Module):
    def __init__(self, value: float, internal_residual: bool = False) -> None:
        super().__init__()
        self.value, self.internal_residual = value, internal_residual

    def forward(self, x: Tensor, _: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return torch.full_like(x, self.value), edge_attr


class Attention(nn.Module):
    def forward(self, x: Tensor, _: GraphContext) -> Tensor:
        return torch.full_like(x, 5.0)


def layer_of(*local: nn.Module, attention: bool = False, rate: float = P, **options: object) -> GPSLayer:
    options = {"norm": "none", "act": nn.Identity} | options
    return GPSLayer(WIDTH, local, Attention() if attention else None, dropout=rate, **options).double()


def call(layer: GPSLayer, x: Tensor) -> Tensor:
    torch.manual_seed(7)
    return layer(x, CONTEXT)[0]


@pytest.mark.parametrize("attention", [False, True], ids=["message passing", "attention"])
def test_what_a_branch_adds_is_dropped_at_the_rate_and_scaled_and_its_residual_is_whole(attention: bool) -> None:
    layer = layer_of(*([] if attention else [Message(5.0)]), attention=attention, recipe=LayerRecipe(ffn=False)).train()
    added = call(layer, torch.full((N, WIDTH), 100.0).double()) - 100
    assert sorted(added.unique().tolist()) == pytest.approx([0, 5 / (1 - P)])
    assert (added == 0).double().mean().item() == pytest.approx(P, abs=0.03)  # 3,200 draws: 3.7 standard deviations


def test_the_ffn_drops_after_its_activation_and_at_its_end_and_the_residual_around_it_is_whole() -> None:
    layer = layer_of(Message(3.0, internal_residual=True), act=nn.GELU).train()
    x = torch.randn(N, WIDTH).double()
    got = call(layer, x)
    first, last = layer.ffn[0], layer.ffn[3]
    torch.manual_seed(7)
    h = torch.full_like(x, 3.0)
    inner = dropout(nn.functional.gelu(first(h)), P, True)
    torch.testing.assert_close(got, h + dropout(last(inner), P, True), rtol=0, atol=0)


BATCH = torch.tensor([0] * 5 + [1] + [3] * 7)  # graph 2 has no node, graph 1 a single one


def pair(dtype: torch.dtype = torch.float64) -> tuple[GraphLayerNorm, LayerNorm, Tensor]:
    norm, reference = GraphLayerNorm(6).to(dtype), LayerNorm(6, mode="graph").to(dtype)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    reference.load_state_dict(norm.state_dict())
    return norm, reference, (3 + 2 * torch.randn(len(BATCH), 6)).to(dtype)


def test_values_and_gradients_are_torch_geometrics() -> None:
    norm, reference, x = pair()
    cotangent, results = torch.randn_like(x), []
    for layer in (norm, reference):
        leaf = x.clone().requires_grad_()
        out = layer(leaf, BATCH, 4)
        (out * cotangent).sum().backward()
        results.append([out, leaf.grad, layer.weight.grad, layer.bias.grad])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nodes", [0, 1])
def test_no_nodes_and_a_single_one_are_finite(nodes: int) -> None:
    x = torch.randn(nodes, 6, requires_grad=True)
    out = GraphLayerNorm(6)(x, torch.zeros(nodes, dtype=torch.long), 1)
    out.sum().backward()
    assert out.shape == (nodes, 6)
    assert torch.isfinite(x.grad).all()


def test_halves_are_normalised_in_float32() -> None:
    norm, _, x = pair(torch.float32)
    expected = norm(x, BATCH, 4)
    out = norm.bfloat16()(x.bfloat16(), BATCH, 4)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=3e-2, atol=3e-2)
