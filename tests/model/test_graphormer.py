"""Graphormer's layer, head and pooling: plain loops in float64, laws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import BiasedFullAttention, FullAttention
from graphgps_kmip.model import FeatureEncoder, GPSModel, GraphormerHead, GraphormerLayer
from graphgps_kmip.registry import components

DIM, HEADS = 6, 2
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


def test_a_graph_alone_gets_what_it_gets_in_a_batch() -> None:
    module, (x, context) = layer(), context_of(SIZES)
    together = module(x, context)[0]
    for first, end in zip(context.ptr[:-1].tolist(), context.ptr[1:].tolist(), strict=True):
        inside = (context.pair_index[0] >= first) & (context.pair_index[0] < end)
        alone = GraphContext(
            torch.zeros(end - first, dtype=torch.long),
            torch.tensor([0, end - first]),
            pair_index=context.pair_index[:, inside] - first,
            pair_attr=context.pair_attr[inside],
        )
        torch.testing.assert_close(module(x[first:end], alone)[0], together[first:end], **EXACT)


def test_renumbered_nodes_permute_the_output() -> None:
    module, (x, context) = layer(), context_of((7,))
    order = torch.randperm(7)
    moved = replace(context, pair_index=order.argsort()[context.pair_index])
    torch.testing.assert_close(module(x[order], moved)[0], module(x, context)[0][order], **EXACT)


def test_gradients_are_right_and_reach_every_parameter() -> None:
    module, (x, context) = layer(), context_of((3, 1))
    bias = context.pair_attr.clone().requires_grad_()
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, bias: module(x, replace(context, pair_attr=bias))[0], (x, bias))
    module(x, context)[0].square().sum().backward()
    for name, parameter in module.named_parameters():
        assert bool(parameter.grad.any()), name


def test_each_dropout_is_in_its_place_and_in_training_only() -> None:
    x, context = context_of(SIZES)
    assert torch.equal(layer(dropout=1.0)(x, context)[0], x)
    module = layer(mlp_dropout=1.0)
    middle = x + module.attention[0](module.attention_norm(x), context)
    torch.testing.assert_close(module(x, context)[0], middle + module.mlp[4].bias, **EXACT)
    for one in (module, layer(dropout=1.0)):
        torch.testing.assert_close(one.eval()(x, context)[0], by_hand(one, x, context), **EXACT)


def test_attention_without_a_bias_may_stand_there_too() -> None:
    x, context = context_of(SIZES)
    biased, plain = layer(), GraphormerLayer(DIM, FullAttention(DIM, HEADS)).double()
    weights = {name.replace("attention.0.attention", "attention.0"): v for name, v in biased.state_dict().items()}
    plain.load_state_dict(weights)
    without = replace(context, pair_attr=torch.zeros_like(context.pair_attr))
    torch.testing.assert_close(plain(x, replace(context, pair_index=None))[0], biased(x, without)[0], **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(dtype: torch.dtype) -> None:
    module, (x, context) = layer(), context_of(SIZES)
    wanted = module(x, context)[0].float()
    module, lower = module.float(), replace(context, pair_attr=context.pair_attr.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        out = module(x.float(), lower)[0]
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(out.float(), wanted, rtol=tolerance, atol=tolerance)


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


def stack(recompute: bool = False) -> GPSModel:
    layers = [GraphormerLayer(DIM, FullAttention(DIM, HEADS)) for _ in range(2)]
    return GPSModel(FeatureEncoder(DIM, None, None), layers, GraphormerHead(DIM, 3), recompute=recompute).double()


@pytest.mark.parametrize("recompute", [False, True])
def test_a_model_stacks_these_layers(recompute: bool) -> None:
    model, again = stack(recompute), stack()
    layers = model.layers
    edges = torch.empty(2, 0, dtype=torch.long)
    batch = Batch.from_data_list([Data(x=torch.randn(n, DIM).double(), edge_index=edges, y=n) for n in SIZES])
    wanted = batch.x
    for one in layers:
        wanted, _, _ = one(wanted, GraphContext.from_data(batch))
    wanted, _ = model.head(Batch(x=wanted, batch=batch.batch, ptr=batch.ptr, y=batch.y, _num_graphs=3))
    pred, _ = model(batch.clone())
    torch.testing.assert_close(pred, wanted, **EXACT)
    pred.square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in layers[0].mlp.parameters())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(batch.clone())[0], model(batch.clone())[0])
