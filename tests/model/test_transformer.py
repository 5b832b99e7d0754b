"""Layers of whole transformers, of Graphormer, SAN and the low-width method, against their formulas."""

from __future__ import annotations

import math
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
    SampledEdgeAttention,
)
from graphgps_kmip.attention.full import BiasedFullAttention
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.model import (
    AttentionLayer,
    FeatureEncoder,
    GPSLayer,
    GPSModel,
    GraphormerHead,
    GraphormerLayer,
    LayerRecipe,
    NodeHead,
    TransformerLayer,
)
from graphgps_kmip.model.san_layer import SANLayer
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer
from graphgps_kmip.mpnn import GINE
from graphgps_kmip.registry import components

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


SIZES = (5, 1, 4)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def context_of(sizes: tuple[int, ...], seed: int = 0) -> tuple[Tensor, GraphContext]:
    """Random nodes, a bias for all pairs inside graphs, some edges that nothing reads."""
    generator = torch.Generator().manual_seed(seed)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    batch = torch.arange(len(sizes)).repeat_interleave(ptr.diff())
    pairs = (batch[:, None] == batch).nonzero().T
    bias = torch.randn(pairs.size(1), HEADS, generator=generator, dtype=torch.float64)
    x = torch.randn(len(batch), DIM, generator=generator, dtype=torch.float64)
    edge_attr = torch.randn(3, DIM, generator=generator, dtype=torch.float64)
    edges = torch.zeros(2, 3, dtype=torch.long)
    return x, GraphContext(batch, ptr, edges, edge_attr, pair_index=pairs, pair_attr=bias)


def layer(dropout: float = 0.0, mlp_dropout: float = 0.0) -> GraphormerLayer:
    module = GraphormerLayer(DIM, BiasedFullAttention(DIM, HEADS), dropout, mlp_dropout).double()
    for parameter in module.parameters():  # biases and norms, too, must tell if they are left out
        nn.init.normal_(parameter, std=0.5)
    return module


def normed(row: list[float], norm: nn.LayerNorm) -> list[float]:
    mean = sum(row) / len(row)
    spread = math.sqrt(sum((value - mean) ** 2 for value in row) / len(row) + 1e-5)
    return [
        (value - mean) / spread * w + b
        for value, w, b in zip(row, norm.weight.tolist(), norm.bias.tolist(), strict=True)
    ]


def mapped(row: list[float], linear: nn.Linear) -> list[float]:
    rows = zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
    return [sum(w * value for w, value in zip(weights, row, strict=True)) + b for weights, b in rows]


def by_hand(module: GraphormerLayer, x: Tensor, context: GraphContext) -> Tensor:
    """Node by node, head by head."""
    attention, width = module.attention[0].attention, DIM // HEADS
    qkv = [mapped(normed(row, module.attention_norm), attention.qkv) for row in x.tolist()]
    bias = {
        (int(i), int(j)): value
        for (i, j), value in zip(context.pair_index.T.tolist(), context.pair_attr.tolist(), strict=True)
    }
    rows = []
    for i, row in enumerate(x.tolist()):
        nodes = [j for j in range(len(x)) if context.batch[j] == context.batch[i]]
        mixed = []
        for head in range(HEADS):
            at = range(head * width, (head + 1) * width)
            score = [sum(qkv[i][c] * qkv[j][DIM + c] for c in at) / math.sqrt(width) + bias[i, j][head] for j in nodes]
            weight = [math.exp(value) for value in score]
            mixed += [
                sum(w * qkv[j][2 * DIM + c] for w, j in zip(weight, nodes, strict=True)) / sum(weight) for c in at
            ]
        middle = [a + b for a, b in zip(row, mapped(mixed, attention.out), strict=True)]
        hidden = mapped(normed(middle, module.mlp[0]), module.mlp[1])
        hidden = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in hidden]
        rows.append([a + b for a, b in zip(middle, mapped(hidden, module.mlp[4]), strict=True)])
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("sizes", [SIZES, (1,), (3,)])
def test_a_layer_is_what_plain_loops_say_and_passes_edges_and_states(sizes: tuple[int, ...]) -> None:
    module, (x, context) = layer(), context_of(sizes)
    states, before = (object(),), x.clone()
    out, edge_attr, passed = module(x, context, states)
    torch.testing.assert_close(out, by_hand(module, x, context), **EXACT)
    assert edge_attr is context.edge_attr
    assert passed is states
    assert torch.equal(x, before)


def test_each_dropout_is_in_its_place_and_in_training_only() -> None:
    x, context = context_of(SIZES)
    assert torch.equal(layer(dropout=1.0)(x, context)[0], x)
    module = layer(mlp_dropout=1.0)
    middle = x + module.attention[0](module.attention_norm(x), context)
    torch.testing.assert_close(module(x, context)[0], middle + module.mlp[4].bias, **EXACT)
    for one in (module, layer(dropout=1.0)):
        torch.testing.assert_close(one.eval()(x, context)[0], by_hand(one, x, context), **EXACT)


def test_the_head_norms_nodes_then_pools_then_maps() -> None:
    batch = Batch.from_data_list([Data(x=torch.randn(n, DIM).double(), y=torch.tensor([n])) for n in SIZES])
    for pooling, pooled in {"graph_token": lambda x: x[0], "mean": lambda x: x.mean(0)}.items():
        head = GraphormerHead(DIM, 3, pooling).double()
        for parameter in head.parameters():
            nn.init.normal_(parameter)
        x = batch.x.clone()
        pred, true = head(batch)
        assert true.tolist() == [5, 1, 4]
        assert torch.equal(batch.x, x)
        for number, rows in enumerate(x.split(SIZES)):
            values = pooled(torch.tensor([normed(row, head.norm) for row in rows.tolist()], dtype=torch.float64))
            wanted = torch.tensor(mapped(values.tolist(), head.mlp[0]), dtype=torch.float64)
            torch.testing.assert_close(pred[number], wanted, **EXACT)


def test_the_token_is_the_first_node_and_graphs_without_nodes_give_zeros() -> None:
    x = torch.arange(1.0, 7.0)[:, None].requires_grad_()
    pooled = components("pooling")["graph_token"](x, torch.tensor([1, 1, 1, 3, 4, 4]), 6)
    assert pooled[:, 0].tolist() == [0, 1, 0, 4, 5, 0]
    pooled.sum().backward()
    assert x.grad[:, 0].tolist() == [1, 0, 0, 1, 1, 0]


def san_graph(nodes: int, edges: int) -> Data:
    edge_index = torch.randint(0, nodes, (2, edges))
    x, edge_attr = torch.randn(nodes, DIM).double(), torch.randn(edges, DIM).double()
    return Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=torch.tensor([0]))


def graphs() -> list[Data]:
    torch.manual_seed(0)
    return [san_graph(5, 9), san_graph(1, 0), san_graph(3, 0), san_graph(4, 7)]


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


NODES, TARGETS = 8, 5
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
