"""Simplified L2 attention of PPGT against the record and the formula; pairs for all layers at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphgps_kmip.attention import ClassAttention, GraphContext, SimplifiedL2Attention, simplified_l2
from graphgps_kmip.attention.simplified_l2 import SharedPairs
from graphgps_kmip.ops.context import complete_pairs
from tests.attention.contexts import context_of
from tests.recorded import check, load

DIM, HEADS = 8, 2
EXACT = {"rtol": 1e-11, "atol": 1e-11}
SIZES = [5, 0, 1, 7]  # the second graph has no node
RECORDED: dict[str, dict[str, Any]] = {
    "class_l2_b3": {},
    "dot_nourpe_b3": {"key_norm": "none", "urpe": False},
    "dot_urpe_b3": {"key_norm": "none"},
    "l2_nourpe_b3": {"urpe": False},
    "l2_urpe_b1": {},
    "l2_urpe_b3": {},
    "l2_urpe_dimedge5_h4_b3": {"dim_pair": 5},
    "l2_urpe_window1_b3": {"window": 1},
}
NAMES = {"Q": "heads.query", "KV": "heads.key_value", "O": "heads.out", "P": "pair"}


def rename(name: str) -> str:
    part, parameter = name.removeprefix("a.").split(".")
    return f"{NAMES[part]}.{parameter}"


@pytest.mark.parametrize("name", RECORDED)
def test_outputs_and_gradients_match_the_recorded_original(name: str) -> None:
    kind = ClassAttention if name.startswith("class") else SimplifiedL2Attention
    attention = kind(DIM, 4 if "_h4_" in name else HEADS, **RECORDED[name]).double()

    def forward(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        context = GraphContext(inputs["batch"], inputs["ptr"])
        if isinstance(attention, ClassAttention):
            return {"h": attention(inputs["cls"], inputs["x"], context)}
        # an edge (source, target) of the original is the pair of query target and key source
        context = replace(context, pair_index=inputs["edge_index"].flip(0), pair_attr=inputs["edge_attr"])
        if "rrwp_attr" in inputs:
            listed = replace(context, pair_index=inputs["rrwp_index"].flip(0), pair_attr=inputs["rrwp_attr"])
            context = replace(context, rrwp=complete_pairs(listed))
        return {"h": attention(inputs["x"], context)}

    check(attention, forward, load(f"F_attention/{name}"), rename)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"scale": "paper"},
    {"urpe": False},
    {"key_norm": "none"},
    {"key_norm": "learned"},
    {"window": 1},
    {"window": 1, "urpe": False, "scale": "paper", "key_norm": "learned"},
]
CHANNELS = 4  # of RRWP


def graphs(sizes: list[int], dim_pair: int = 3) -> tuple[Tensor, GraphContext]:
    """Random nodes, features of all pairs and non-negative RRWP, of whose channels most are 0."""
    context = context_of(sizes)
    rrwp = torch.rand(context.num_pairs, CHANNELS, dtype=torch.float64)
    return torch.randn(len(context.batch), DIM, dtype=torch.float64), replace(
        context,
        pair_attr=torch.randn(context.num_pairs, dim_pair, dtype=torch.float64),
        rrwp=rrwp * (rrwp > 0.75),
    )


def layer(dropout: float = 0.0, **options: Any) -> SimplifiedL2Attention:
    attention = SimplifiedL2Attention(DIM, HEADS, dropout, dim_pair=3, **options).double()
    if attention.heads.key_scale is not None:
        nn.init.uniform_(attention.heads.key_scale)
    return attention


def weights_by_the_formula(attention: SimplifiedL2Attention, x: Tensor, context: GraphContext) -> Tensor:
    """Weight times factor, query by query; 0 for pairs of different graphs and outside the window: (H, N, N)."""
    heads, width = attention.heads, DIM // HEADS
    q = heads.query(x).unflatten(1, (HEADS, width))
    k = heads.key_value(x)[:, :DIM].unflatten(1, (HEADS, width))
    root, factors = math.sqrt(width), {"none": [0] * HEADS, "fixed": [1] * HEADS, "learned": heads.key_scale}
    weight, pair = torch.zeros(HEADS, len(x), len(x), dtype=torch.float64), 0
    for start, end in zip(context.ptr.tolist(), context.ptr[1:].tolist(), strict=False):
        for i in range(start, end):
            rows = slice(pair, pair + end - start)
            pairs, near = attention.pair(context.pair_attr[rows]), torch.ones(end - start, dtype=torch.bool)
            if attention.window > 0:
                near = context.rrwp[rows, : attention.window + 2].sum(1) > 0
            for head in range(HEADS) if near.any() else ():
                key, square = k[start:end, head], factors[heads.key_norm][head]
                score = key @ q[i, head] / (root if heads.scale != 1 else 1) + pairs[:, head]
                score = score - square * key.square().sum(1) / (2 * root)
                row = score.masked_fill(~near, -torch.inf).softmax(0)
                row = row * (1 + pairs[:, HEADS + head]) if attention.urpe else row
                weight[head, i, start:end] = row.detach()
            pair += end - start
    return weight


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_equals_the_formula_in_each_graph(options: dict[str, Any]) -> None:
    attention, (x, context) = layer(**options), graphs(SIZES)
    v = attention.heads.key_value(x)[:, DIM:].unflatten(1, (HEADS, -1))
    out = torch.einsum("hnm,mhd->nhd", weights_by_the_formula(attention, x, context), v).flatten(1)
    torch.testing.assert_close(attention(x, context), attention.heads.out(out), **EXACT)


@pytest.mark.parametrize("options", [{}, *OPTIONS[-2:]], ids=str)
def test_gradients_to_inputs_pairs_and_parameters_equal_finite_differences(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simplified_l2, "PAIRS_AT_A_TIME", 2)
    attention, (x, context) = layer(**options), graphs([3, 0, 1, 4])

    def output(x: Tensor, pair_attr: Tensor, *_: Tensor) -> Tensor:
        return attention(x, replace(context, pair_attr=pair_attr))

    leaves = x.requires_grad_(), context.pair_attr.requires_grad_(), *attention.parameters()
    assert torch.autograd.gradcheck(output, leaves, fast_mode=True)


def test_bad_options_and_missing_features_of_pairs_are_one_clear_line() -> None:
    attention, (x, context) = layer(), graphs([3])
    with pytest.raises(ValueError, match="set pair_attr"):
        attention(x, context.batch)
    with pytest.raises(ValueError, match=r"of width 3, got shape \(9, 2\): set gt\.sl2\.dim_pair"):
        attention(x, replace(context, pair_attr=context.pair_attr[:, :2]))
    for options in ({"key_norm": "no"}, {"scale": "half"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be one of"):
            layer(**options)
    with pytest.raises(ValueError, match="got 2 tokens for 1 graphs"):
        ClassAttention(DIM, HEADS).double()(x[:2], x, context)


@pytest.mark.parametrize("options", [{}, {"scale": "paper", "key_norm": "none"}], ids=str)
def test_a_class_token_attends_to_the_nodes_of_its_graph_by_the_formula(options: dict[str, Any]) -> None:
    attention, (x, context) = ClassAttention(DIM, HEADS, **options).double(), graphs(SIZES)
    heads, token = attention.heads, torch.randn(len(SIZES), DIM, dtype=torch.float64)
    q = heads.query(token).unflatten(1, (HEADS, -1))
    k, v = (part.unflatten(1, (HEADS, -1)) for part in heads.key_value(x).chunk(2, 1))
    root, expected = math.sqrt(DIM // HEADS), torch.zeros_like(q)
    for graph, (start, end) in enumerate(zip(context.ptr.tolist(), context.ptr[1:].tolist(), strict=False)):
        for head in range(HEADS) if end > start else ():
            key = k[start:end, head]
            score = key @ q[graph, head] / (1 if heads.scale == 1 else root)
            score = score - key.square().sum(1) / (2 * root) if heads.key_norm == "fixed" else score
            expected[graph, head] = score.softmax(0) @ v[start:end, head]
    expected = expected.flatten(1)
    torch.testing.assert_close(attention(token, x, context), heads.out(expected), **EXACT)
    torch.testing.assert_close(attention(token, x, context)[1], heads.out(torch.zeros_like(token))[1], **EXACT)


def layers(**options: bool) -> list[SimplifiedL2Attention]:
    return [layer(**options) for _ in range(3)]


@pytest.mark.parametrize("urpe", [True, False])
def test_outputs_and_gradients_are_those_of_each_layer_by_itself(urpe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplified_l2, "PAIRS_AT_A_TIME", 7)
    stack, (x, context), results = layers(urpe=urpe), graphs(SIZES), []
    leaves = [context.pair_attr.requires_grad_(), *(parameter for layer in stack for parameter in layer.parameters())]
    for shared in (True, False):
        h, state = x, SharedPairs(stack)(context) if shared else None
        for attention in stack:
            h, state = attention(h, context, state) if shared else (attention(h, context), None)
        assert state in ((), None)
        results.append((h, *torch.autograd.grad(h.square().sum(), leaves)))
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
