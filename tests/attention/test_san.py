"""SAN's attention against its formula, node by node, and what it keeps and refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention import san as unlinked
from graphgps_kmip.attention.san import SANAttention
from graphgps_kmip.testing.laws import attend
from tests.attention.san_cases import DIM, HEADS, ROUNDING, SIZES, batch, every_form, make


def by_node(attention: SANAttention, x: Tensor, context: GraphContext) -> Tensor:
    """Return the output by the formula, in plain loops."""

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


def gradients(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor | None, ...]:
    torch.manual_seed(7)
    return torch.autograd.grad((out * torch.randn_like(out)).sum(), tensors, allow_unused=True)


@every_form
@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["small", "clamped"])
@pytest.mark.parametrize("at_once", [1, 2 * len(SIZES) * 7 * 3, 2**22], ids=["row by row", "three rows", "all rows"])
def test_output_and_gradients_equal_the_formula(
    options: dict[str, Any], scale: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(unlinked.LARGEST, "cpu", at_once)
    attention, (x, context) = make(options, scale), batch()
    tensors = [x.requires_grad_(), context.edge_attr.requires_grad_(), *attention.parameters()]
    out, expected = attend(attention, x, context), by_node(attention, x, context)
    torch.testing.assert_close(out, expected, **ROUNDING)
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        assert (found is None) == (wanted is None) or not (found if wanted is None else wanted).any()
        if found is not None and wanted is not None:
            torch.testing.assert_close(found, wanted, **ROUNDING)


def test_a_node_alone_and_nodes_with_all_edges_have_no_other_pairs() -> None:
    attention = make({"gamma": 0.3})
    x, lonely = batch([1], 0)
    torch.testing.assert_close(attend(attention, x, lonely), attention.out.bias[None], **ROUNDING)
    torch.manual_seed(3)
    x, edge_attr = torch.randn(4, DIM).double(), torch.randn(12, DIM).double()
    pairs = (~torch.eye(4, dtype=torch.bool)).nonzero().T
    outputs = []
    for edges in (pairs, pairs[:, :11]):  # all but one
        context = replace(GraphContext.of(None, x), edge_index=edges, edge_attr=edge_attr[: edges.size(1)])
        for attention.gamma in (0.0, 0.3):
            outputs.append(attend(attention, x, context))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-5)  # the 1e-6 of the sum is 1.3e-6
    assert (outputs[2] - outputs[3]).abs().max() > 1e-2


def test_an_edge_counts_in_its_own_direction_only() -> None:
    attention = make({"gamma": 0.5})
    torch.manual_seed(3)
    x = torch.randn(2, DIM).double()
    context = replace(
        GraphContext.of(None, x), edge_index=torch.tensor([[0], [1]]), edge_attr=torch.randn(1, DIM).double()
    )
    moved = context.with_edge_attr(context.edge_attr + 1.0)
    first, second = attend(attention, x, context), attend(attention, x, moved)
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    assert not torch.equal(first[1], second[1])
    with torch.no_grad():
        attention.fake_edge.weight += 1.0
    third = attend(attention, x, context)
    assert not torch.equal(first[0], third[0])
    torch.testing.assert_close(first[1], third[1], rtol=0, atol=0)


@pytest.mark.parametrize("separate", [False, True])
def test_nothing_as_long_as_the_pairs_is_kept_where_they_are_many(
    separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, context = batch([40, 40])
    monkeypatch.setitem(unlinked.LARGEST, "cpu", 2 * HEADS * 40 * 4)  # four rows at once
    saved: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend(make({"separate": separate}), x, context)
    assert saved
    assert max(shape.numel() for shape in saved) < 2 * HEADS * 40 * 40
    assert all(shape[-2:] != (4, 40) for shape in saved)


def test_dropout_stands_before_the_last_map() -> None:
    attention, (x, context) = make({}).train(), batch()
    attention.dropout.p = 1.0
    torch.testing.assert_close(attend(attention, x, context), attention.out.bias.expand_as(x))


def test_wrong_arguments_and_data_name_what_to_change() -> None:
    x, context = batch()
    for options, message in (
        ({"gamma": -0.1}, "gamma must be >= 0"),
        ({"num_heads": 4}, "divisible by num_heads"),
        ({"dropout": 1.0}, "dropout"),
    ):
        with pytest.raises(ValueError, match=message):
            SANAttention(**{"dim": DIM, "num_heads": HEADS} | options)
    for edge_attr in (None, context.edge_attr[:, 1:]):
        with pytest.raises(ValueError, match="dataset.edge_encoder True"):
            attend(make({}), x, context.with_edge_attr(edge_attr))
    with pytest.raises(ValueError, match="secondary_edges 'expnder'.*full_graph, none, expander"):
        attend(make({"secondary_edges": "expnder"}), x, context)


def test_without_a_state_it_is_called_as_other_attentions_are() -> None:
    attention, (x, context) = make({}), batch()
    torch.testing.assert_close(attention(x, context), attend(attention, x, context), rtol=0, atol=0)
