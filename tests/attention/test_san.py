"""SAN's attention against its formula, node by node, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext, SANAttention, san
from graphgps_kmip.testing.laws import attend, make_batch

DIM, HEADS, SIZES = 6, 2, [5, 1, 7, 3]
ROUNDING = {"rtol": 1e-11, "atol": 1e-11}  # float64 sums of tens of terms in another order
FORMS = {
    "SAN": {"gamma": 0.3},
    "SAN with little weight": {"gamma": 1e-5},
    "SAN on edges": {"secondary_edges": "none"},
    "SAN on two edge sets": {"secondary_edges": "expander", "gamma": 0.3},
    "SAN2": {"separate": True},
    "SAN2 on edges": {"separate": True, "secondary_edges": "none"},
    "SAN2 on two edge sets": {"separate": True, "secondary_edges": "expander"},
}
every_form = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)


def make(options: dict[str, Any], scale: float = 1.0) -> SANAttention:
    torch.manual_seed(1)
    attention = SANAttention(DIM, HEADS, **options).double().eval()
    with torch.no_grad():
        for linear in (attention.query, attention.fake_query):
            if linear is not None:
                linear.weight *= scale
        if options.get("separate"):
            attention.gamma.fill_(0.7)
    return attention


def batch(sizes: list[int] = SIZES, num_edges: int = 2) -> tuple[Tensor, GraphContext]:
    """Return nodes and graphs with random edges, some twice and some loops, and a set of further edges."""
    torch.manual_seed(2)
    x, context = make_batch(sizes, DIM, num_edges)
    return x, replace(context, edge_sets={"expander": (context.edge_index.flip(0)[:, ::2], None)})


def by_node(attention: SANAttention, x: Tensor, context: GraphContext) -> Tensor:
    def heads(linear: nn.Linear, row: Tensor) -> Tensor:
        return linear(row).view(HEADS, -1)

    def logit(maps: tuple[nn.Linear, ...], i: int, j: int, feature: Tensor, head: int) -> Tensor:
        q, k, e = (heads(linear, row)[head] for linear, row in zip(maps, (x[i], x[j], feature), strict=True))
        return sum(q[d] * k[d] * e[d] for d in range(len(q))) / math.sqrt(len(q))

    edges, out = context.edge_index.T.tolist(), []
    real = (attention.query, attention.key, attention.edge)
    fake = (attention.fake_query, attention.fake_key, attention.fake_edge)
    for i in range(len(x)):
        others = {
            "none": [],
            "full_graph": [
                j for j in range(len(x)) if context.batch[j] == context.batch[i] and j != i and [j, i] not in edges
            ],
            "expander": [j for j, target in context.edge_sets["expander"][0].T.tolist() if target == i],
        }[attention.secondary_edges]
        mean = []
        for head in range(HEADS):
            into = [number for number, edge in enumerate(edges) if edge[1] == i]
            near = [logit(real, i, edges[n][0], context.edge_attr[n], head) for n in into]
            far = [logit(fake, i, j, attention.initial_state.feature.weight[0], head) for j in others]
            value = [heads(attention.value, x[j])[head] for j in (*(edges[n][0] for n in into), *others)]
            mean.append(weighted(attention, near, far, value))
        out.append(attention.out(torch.cat(mean)))
    return torch.stack(out)


def weighted(attention: SANAttention, near: list[Tensor], far: list[Tensor], value: list[Tensor]) -> Tensor:
    gamma, some = attention.gamma, attention.secondary_edges != "none"
    if attention.separate:
        weights = [logit.exp() / sum(other.exp() for other in part) for part in (near, far) for logit in part]
    else:
        weights = [logit.clamp(-5, 5).exp() for logit in (*near, *far)]
    shares = [1 / (1 + gamma), gamma / (1 + gamma)] if some else [1, 0]
    weights = [w * shares[n >= len(near)] for n, w in enumerate(weights)]
    total = 1 if attention.separate else sum(weights) + 1e-6
    return sum((w * v for w, v in zip(weights, value, strict=True)), torch.zeros(DIM // HEADS).double()) / total


def gradients(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    torch.manual_seed(7)
    cotangent = torch.randn_like(out)
    return torch.autograd.grad(out, tensors, cotangent, allow_unused=True, materialize_grads=True)


@every_form
@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["small", "clamped"])
@pytest.mark.parametrize("at_once", [1, 2 * len(SIZES) * 7 * 3, 2**22], ids=["row by row", "three rows", "all rows"])
def test_output_and_gradients_equal_the_formula(
    options: dict[str, Any], scale: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(san.LARGEST, "cpu", at_once)
    attention, (x, context) = make(options, scale), batch()
    tensors = [x.requires_grad_(), context.edge_attr.requires_grad_(), *attention.parameters()]
    out, expected = attend(attention, x, context), by_node(attention, x, context)
    torch.testing.assert_close(out, expected, **ROUNDING)
    torch.testing.assert_close(gradients(out, tensors), gradients(expected, tensors), **ROUNDING)


@pytest.mark.parametrize("separate", [False, True])
def test_nothing_as_long_as_the_pairs_is_kept_where_they_are_many(
    separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, context = batch([40, 40])
    monkeypatch.setitem(san.LARGEST, "cpu", 2 * HEADS * 40 * 4)  # four rows at once
    saved: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend(make({"separate": separate}), x, context)
    assert saved
    assert max(shape.numel() for shape in saved) < 2 * HEADS * 40 * 40
    assert all(shape[-2:] != (4, 40) for shape in saved)


def test_wrong_data_names_what_to_change() -> None:
    x, context = batch()
    for edge_attr in (None, context.edge_attr[:, 1:]):
        with pytest.raises(ValueError, match="dataset.edge_encoder True"):
            attend(make({}), x, context.with_edge_attr(edge_attr))
    with pytest.raises(ValueError, match="secondary_edges 'expnder'.*full_graph, none, expander"):
        attend(make({"secondary_edges": "expnder"}), x, context)
