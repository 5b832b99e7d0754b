"""Both stages of the low-width method against their formulas, edge by edge, and the record."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import ExphormerAttention, GraphContext, SampledEdgeAttention, ScoreEstimatorAttention
from graphgps_kmip.attention.exphormer import EXPANDER_EDGE, GRAPH_EDGE, SELF_LOOP, ExphormerState, typed_edges
from graphgps_kmip.attention.score_estimator import temperature
from graphgps_kmip.compat.public_faults import MixedHeadsAttention
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer
from graphgps_kmip.ops import clamped_attention as clamped
from tests.attention.contexts import context_of
from tests.recorded import TOLERANCE, check, load, part


def test_edges_are_sorted_by_target_and_each_is_there_as_often_as_it_is_listed_with_its_kind() -> None:
    graph = torch.tensor([[2, 1, 0, 0, 2], [0, 0, 1, 1, 2]])
    expander = torch.tensor([[1, 2, 2, 1, 1], [0, 0, 1, 2, 2]])
    edges = typed_edges(context_of([3], edge_index=graph, edge_sets={"expander": (expander, None)}))
    expected = [(*edge, GRAPH_EDGE) for edge in graph.T.tolist()]
    expected += [(*edge, EXPANDER_EDGE) for edge in expander.T.tolist()]
    expected += [(node, node, SELF_LOOP) for node in range(3)]
    assert edges.dtype == torch.int64
    assert list(map(tuple, edges.T.tolist())) == sorted(expected, key=lambda edge: edge[1])  # stable


@pytest.mark.parametrize("sizes", [[1], [2, 3], [0, 2], []])
def test_graphs_without_edges_have_self_loops(sizes: list[int]) -> None:
    nodes = [*range(sum(sizes))]
    for edge_index in (None, torch.empty(2, 0, dtype=torch.long)):
        edges = typed_edges(context_of(sizes, edge_index=edge_index))
        assert edges.tolist() == [nodes, nodes, [SELF_LOOP] * len(nodes)]


DIM, NODES = 6, 7
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"elementwise": True},
    {"normalise_values": False},
    {"value_scale": 0.0},
    {"normalise_values": False, "value_scale": 0.0},
    {"use_edge_types": False},
    {"self_loops": False},
]


def built(num_heads: int = 2, scale: float = 1.0, **options: Any) -> ScoreEstimatorAttention:
    """Return an estimator in float64 whose parameters are drawn, its logits so large that the clamp holds for some."""
    attention = ScoreEstimatorAttention(DIM, num_heads, **options).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return attention


def graph() -> tuple[Tensor, GraphContext]:
    """Return nodes and edges, some of them twice; the last node has a self loop alone."""
    edge_index = torch.randint(0, NODES - 1, (2, 12))
    edge_index = torch.cat([edge_index, edge_index[:, :3]], 1)
    sets = {"expander": (torch.randint(0, NODES - 1, (2, 8)), None)}
    x = torch.randn(NODES, DIM, dtype=torch.double)
    return x, replace(GraphContext.of(None, x), edge_index=edge_index, edge_sets=sets)


def by_edge(attention: ScoreEstimatorAttention, x: Tensor, context: GraphContext) -> tuple[Tensor, dict[Any, list]]:
    """Return the output, and the weights of the edges (source, target, kind, head), by loops over all edges."""
    heads, dim = attention.num_heads, DIM // attention.num_heads
    edges = [(int(j), int(i), 0) for j, i in context.edge_index.T]
    edges += [(int(j), int(i), 1) for j, i in context.edge_sets["expander"][0].T]
    edges += [(i, i, 2) for i in range(len(x))] if attention.self_loops else []
    types, qkv = attention.initial_state.types.weight, attention.qkv(x)
    out, weights = [], {}
    for node in range(len(x)):
        for head in range(heads):
            at = 3 * dim * head
            q = qkv[node, at : at + dim]
            total, weighted, inside = 1e-6, torch.zeros(dim, dtype=x.dtype), []
            for j, i, kind in edges:
                if i != node:
                    continue
                k, v = qkv[j, at + dim : at + 2 * dim], qkv[j, at + 2 * dim : at + 3 * dim]
                score = (k * q).sum() / math.sqrt(dim)
                if attention.use_edge_types:
                    e = (attention.edge.weight @ types[kind])[head * dim : (head + 1) * dim]
                    bias = (attention.edge_bias.weight @ types[kind] + attention.edge_bias.bias)[head]
                    score = (e * k * q).sum() + bias if attention.elementwise else score * e.sum() + bias
                score = (score / attention.temperature).clamp(-8, 8).exp()
                v = v / v.norm() if attention.normalise_values else v
                v = v if attention.value_scale is None else v * attention.value_scale
                total, weighted = total + score, weighted + score * v
                inside.append(((j, i, kind, head), score))
            for key, score in inside:
                weights.setdefault(key, []).append(float((score / (total - 1e-6)).detach()))
            out.append(weighted / total)
    return torch.stack(out).view_as(x), weights


def assert_same_gradients(out: Tensor, expected: Tensor, tensors: list[Tensor]) -> None:
    cotangent, unused = torch.randn_like(out), {"allow_unused": True, "materialize_grads": True}
    grads = (torch.autograd.grad(result, tensors, cotangent, **unused) for result in (out, expected))
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [0.5, 1.5], ids=["small", "clamped"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_output_and_gradients_equal_the_formula(options: dict[str, Any], scale: float) -> None:
    attention, (x, context) = built(scale=scale, **options), graph()
    attention.temperature.fill_(0.3)
    tensors = [x.requires_grad_(), *attention.parameters()]
    out, expected = attention(x, context), by_edge(attention, x, context)[0]
    torch.testing.assert_close(out, expected, **ROUNDING)
    assert_same_gradients(out, expected, tensors)


@pytest.mark.parametrize("entries", [7 * 6, 2**20], ids=["seven edges", "all edges"])
def test_weights_of_edges_are_those_of_the_formula(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", entries)
    attention, (x, context) = built(), graph()
    attention.temperature.fill_(0.5)
    edges, weight = attention.edge_scores(x, context)
    weights: dict[Any, list] = {}
    for column, row in zip(edges.T.tolist(), weight.tolist(), strict=True):
        for head, share in enumerate(row):
            weights.setdefault((*column, head), []).append(share)
    expected = by_edge(attention, x, context)[1]
    assert weights.keys() == expected.keys()
    assert all(weights[key] == pytest.approx(expected[key], rel=1e-9) for key in weights)


def test_the_attention_graph_has_the_weights_in_slots() -> None:
    attention, (x, context) = built(), graph()
    edges, weight = attention.edge_scores(x, context)
    learned = attention.attention_graph(x, context)
    largest = int(edges[1].bincount().max())
    assert learned.index.shape == learned.weight.shape == (2, NODES, largest)
    for head in range(2):
        for node in range(NODES):
            slots = learned.index[head, node] >= 0
            into = edges[1] == node
            assert torch.equal(learned.index[head, node][slots], edges[0, into])
            assert torch.equal(learned.weight[head, node][slots], weight[into, head])
            assert not learned.weight[head, node][~slots].any()


def test_the_temperature_follows_the_epoch_in_training_and_stays_in_evaluation() -> None:
    attention, (x, context) = built(temp_wait=2, temp_ratio=0.5, temp_min=0.1), graph()
    assert attention.temperature == 1.0
    attention.train()(x, replace(context, epoch=4))
    assert attention.temperature == 0.25
    cold = attention.eval()(x, replace(context, epoch=0))
    assert attention.temperature == 0.25
    attention.train()(x, context)  # no epoch: as it was
    assert attention.temperature == 0.25
    other = built(temp_wait=2)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other.eval()(x, context), cold)
    other.temperature.fill_(1.0)
    assert not torch.equal(other(x, context), cold)


def test_a_backward_pass_after_the_next_epoch_has_the_temperature_of_its_own() -> None:
    attention, (x, context) = built(temp_wait=0, temp_ratio=0.5), graph()
    first = attention.train()(x.requires_grad_(), replace(context, epoch=0))
    expected = torch.autograd.grad(first.sum(), x, retain_graph=True)[0]
    attention(x, replace(context, epoch=3))
    assert torch.equal(torch.autograd.grad(first.sum(), x)[0], expected)


SOURCES, TARGETS = 11, 5


def case(num_heads: int = 2, scale: float = 1.0) -> tuple[SampledEdgeAttention, Tensor, Tensor, Tensor]:
    """Return attention, x, edges and types (float64); the last target has no edge."""
    attention = SampledEdgeAttention(DIM, num_heads).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    edges = torch.stack([torch.randint(0, count, (14,)) for count in (SOURCES, TARGETS - 1, 3)])
    x, types = (torch.randn(rows, DIM, dtype=torch.double, requires_grad=True) for rows in (SOURCES, 3))
    return attention, x, edges, types


def by_sampled_edge(attention: SampledEdgeAttention, x: Tensor, edges: Tensor, types: Tensor) -> Tensor:
    dim, rows = DIM // attention.num_heads, []
    for target in range(TARGETS):
        inside = [(j, r) for j, i, r in edges.T.tolist() if i == target]
        for head in range(attention.num_heads):
            part = slice(head * dim, (head + 1) * dim)
            q, values, logits = attention.query(x[target])[part], [], []
            for j, r in inside:
                k, e = attention.key(x[j])[part], attention.edge(types[r])[part]
                logits.append(((q * k * e).sum() + attention.edge_bias(types[r])[head]).clamp(-8, 8))
                values.append(attention.value(x[j])[part])
            weights = torch.stack(logits).softmax(0) if inside else []
            rows.append(sum((w * v for w, v in zip(weights, values, strict=True)), torch.zeros(dim, dtype=x.dtype)))
    return torch.stack(rows).view(TARGETS, DIM)


@pytest.mark.parametrize("num_heads", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.5, 1.5], ids=["small", "clamped"])
def test_output_and_gradients_along_sampled_edges_equal_the_formula(num_heads: int, scale: float) -> None:
    attention, x, edges, types = case(num_heads, scale)
    out, expected = attention(x, edges, TARGETS, types), by_sampled_edge(attention, x, edges, types)
    torch.testing.assert_close(out, expected, **ROUNDING)
    assert not out[-1].any()  # no edge leads there
    assert_same_gradients(out, expected, [x, types, *attention.parameters()])


def test_mixed_heads_need_as_many_edges_into_each_node() -> None:
    _, x, edges, types = case()
    with pytest.raises(ValueError, match="repeat_missing"):
        MixedHeadsAttention(DIM, 2).double()(x, edges, TARGETS, types)


RECORDED_DIM = 8
NAMES = {
    "attention_layer.self_attn.": "attention.0.",
    "attention_layer.norm1_attn.": "attention_norm.0.norm.module.",
    "norm2.": "ffn_norm.norm.module.",
    "ff_linear1.": "ffn.0.",
    "ff_linear2.": "ffn.3.",
    "QKV.": "qkv.",
    "V_scale": "value_scale",
    "E1.": "edge.",
    "E2.": "edge_bias.",
    "Q.": "query.",
    "K.": "key.",
    "V.": "value.",
    "E.": "edge.",
}


def rename(name: str) -> str:
    for old, new in NAMES.items():
        if old in name:
            before, _, after = name.partition(old)
            return f"{before}{new}{rename(after)}"
    return name


def state_of(inputs: dict[str, Tensor]) -> ExphormerState:
    """Return the edges of a record: of three kinds with a vector each, or with a vector of each edge."""
    kind = inputs["edge_attr"]
    features = inputs.get("edge_embeddings", kind)
    if kind.is_floating_point():
        kind = torch.arange(len(kind))
    elif features is kind:  # no features at all
        features = torch.zeros(3, RECORDED_DIM, dtype=torch.double)
    return ExphormerState(torch.cat([inputs["edge_index"], kind[None]]), features, features[:0])


def sampled(inputs: dict[str, Tensor], layer: int) -> tuple[Tensor, int, Tensor]:
    kind = inputs[f"edge_type_layer_{layer}"]
    types = inputs.get("edge_embeddings", kind)
    row = torch.arange(len(kind)) if kind.is_floating_point() else kind
    edges = torch.cat([inputs[f"edge_index_layer_{layer}"], row[None]])
    return edges, int(inputs["num_layer_nodes"][layer + 1]), types


NOEDGE = "T1.0_h1_types_noedge"


@pytest.mark.parametrize(
    "name", ["T0.3_h1_types", "T0.3_h1_types_scaled4.0", "T0.3_h2_types", "T0.3_h2_vecs", "T1.0_h2_types", NOEDGE]
)
def test_the_estimator_matches_the_recorded_attention(name: str) -> None:
    attention = ScoreEstimatorAttention(RECORDED_DIM, int(name[6]), use_edge_types=name != NOEDGE)
    record = load(f"C_spex/ase_attention_{name}")
    del attention.initial_state
    record["state/temperature"] = record["eval/extra/T"]

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"h": attention(inputs["x"], inputs["batch"], state_of(inputs))[0]}

    check(attention.double(), forward, record, rename)
    if "eval/extra/attention_scores" in record:  # the sums of the record do not have the 1e-6 either
        inputs = part(record, "in")
        edges, weight = attention.edge_scores(inputs["x"], inputs["batch"], state_of(inputs))
        assert torch.equal(edges[:2], inputs["edge_index"])
        expected = record["eval/extra/attention_scores"].squeeze(-1)
        torch.testing.assert_close(weight, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["h1_deg4_types", "h2_deg4_types", "h2_deg4_vecs"])
def test_attention_along_sampled_edges_matches_the_recorded_one(name: str) -> None:
    # with two heads the recorded code mixes them up
    kind = SampledEdgeAttention if name[1] == "1" else MixedHeadsAttention
    attention = kind(RECORDED_DIM, int(name[1])).double()
    record = load(f"C_spex/spex_attention_{name}")
    check(attention, lambda inputs: {"h": attention(inputs["x"], *sampled(inputs, 0))}, record, rename)


class Stack(nn.ModuleList):
    def whole(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x, states = inputs["x"], (state_of(inputs),)
        for layer in self:
            x, _, states = layer(x, GraphContext.of(inputs["batch"], x), states)
        return {"x": x}

    def sampled(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        x = inputs["x"]
        for number, layer in enumerate(self):
            x = layer.along_sampled_edges(x, *sampled(inputs, number))
        return {"x": x}


@pytest.mark.parametrize("name", ["ASE_batch_norm_ffn", "Exphormer_batch_norm_ffn"])
def test_layers_along_typed_edges_match_the_recorded_original(name: str) -> None:
    estimator = name.startswith("ASE")
    attention = ScoreEstimatorAttention(RECORDED_DIM, 1) if estimator else ExphormerAttention(RECORDED_DIM, 2)
    del attention.initial_state
    record = load(f"C_spex/full_{name}_L1")
    if estimator:
        record["state/0.attention_layer.self_attn.temperature"] = torch.tensor(0.3, dtype=torch.double)
    stack = Stack([SpexphormerLayer(RECORDED_DIM, attention)]).double()
    check(stack, stack.whole, record, rename)


def test_layers_of_the_sparse_network_match_the_recorded_original() -> None:
    attentions = [MixedHeadsAttention(RECORDED_DIM, 2) for _ in range(2)]
    stack = Stack(SpexphormerLayer(RECORDED_DIM, attention) for attention in attentions).double()
    check(stack, stack.sampled, load("C_spex/full_Spexphormer_batch_norm_ffn_L2"), rename)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_temperatures_of_epochs_match_the_recorded_schedule(number: int) -> None:
    record = load("C_spex/temperature_schedule")
    wait, ratio, minimum = record[f"in/wait_ratio_min_{number}"].tolist()
    schedule = [temperature(epoch, int(wait), ratio, minimum) for epoch in range(20)]
    assert schedule == pytest.approx(record[f"out/T_{number}"].tolist(), rel=1e-14)
