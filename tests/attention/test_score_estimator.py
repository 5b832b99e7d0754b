"""The score estimator against its formulas, edge by edge; its temperature, options and weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext, ScoreEstimatorAttention
from graphgps_kmip.attention.score_estimator import temperature

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
    types, one = attention.initial_state.types.weight, attention.qkv(x)
    out, weights = [], {}
    for node in range(len(x)):
        for head in range(heads):
            at = 3 * dim * head
            q = one[node, at : at + dim]
            total, weighted, inside = 1e-6, torch.zeros(dim, dtype=x.dtype), []
            for j, i, kind in edges:
                if i != node:
                    continue
                k, v = one[j, at + dim : at + 2 * dim], one[j, at + 2 * dim : at + 3 * dim]
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


@pytest.mark.parametrize("scale", [0.5, 1.5], ids=["small", "clamped"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_output_and_gradients_equal_the_formula(options: dict[str, Any], scale: float) -> None:
    attention, (x, context) = built(scale=scale, **options), graph()
    attention.temperature.fill_(0.3)
    tensors = [x.requires_grad_(), *attention.parameters()]
    out, expected = attention(x, context), by_edge(attention, x, context)[0]
    torch.testing.assert_close(out, expected, **ROUNDING)
    cotangent = torch.randn_like(out)
    found, wanted = (
        torch.autograd.grad(one, tensors, cotangent, allow_unused=True, materialize_grads=True)
        for one in (out, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_weights_of_edges_are_those_of_the_formula() -> None:
    attention, (x, context) = built(), graph()
    attention.temperature.fill_(0.5)
    edges, weight = attention.edge_scores(x, context)
    found: dict[Any, list] = {}
    for column, row in zip(edges.T.tolist(), weight.tolist(), strict=True):
        for head, one in enumerate(row):
            found.setdefault((*column, head), []).append(one)
    expected = by_edge(attention, x, context)[1]
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], rel=1e-9) for key in found)


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


def test_the_attention_graph_of_no_nodes_is_empty() -> None:
    learned = built().attention_graph(torch.empty(0, DIM, dtype=torch.double))
    assert learned.index.shape == (2, 0, 0)


def test_values_of_length_one_bound_the_output_by_their_scale() -> None:
    attention, (x, context) = built(num_heads=1), graph()
    attention.value_scale.data.fill_(0.25)
    assert attention(100 * x, context).norm(dim=1).max() <= 0.25


def test_the_learned_scale_starts_at_a_quarter_or_is_left_out() -> None:
    assert ScoreEstimatorAttention(4, 1).value_scale.item() == 0.25
    assert ScoreEstimatorAttention(4, 1, value_scale=2.0).value_scale.item() == 2.0
    assert ScoreEstimatorAttention(4, 1, value_scale=0).value_scale is None


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 1.0), (4, 1.0), (5, 1.0), (6, 0.9), (7, 0.81), (16, 0.9**11), (99, 0.3)]
)
def test_the_temperature_waits_falls_and_stays_at_its_minimum(epoch: int, expected: float) -> None:
    assert temperature(epoch, wait=5, ratio=0.9, minimum=0.3) == pytest.approx(expected)


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


def test_no_tensor_as_long_as_the_edges_but_the_edges_is_kept() -> None:
    attention, (x, context) = built(), graph()
    context = replace(context, edge_index=torch.randint(0, NODES, (2, 1000)))
    state, saved = attention.initial_state(context), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        attention(x.requires_grad_(), context, state)
    assert max(len(tensor) for tensor in saved if tensor.dim() and tensor.data_ptr() != state.edges.data_ptr()) < 50


@pytest.mark.parametrize(
    "options", [{"temp_wait": -1}, {"temp_ratio": 0.0}, {"temp_min": 0.0}, {"value_scale": -0.1}], ids=str
)
def test_options_out_of_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="temp_wait"):
        ScoreEstimatorAttention(4, 1, **options)


def test_options_that_were_set_are_said() -> None:
    assert ScoreEstimatorAttention(4, 1).extra_repr() == "dim=4, num_heads=1"
    said = ScoreEstimatorAttention(4, 1, temp_min=0.05, value_scale=0.0).extra_repr()
    assert said == "dim=4, num_heads=1, temp_min=0.05, value_scale=0.0"
