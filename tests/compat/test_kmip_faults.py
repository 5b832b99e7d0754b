"""The faults of the public k-MIP code, switched on: against a brute force, and off by default."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import GraphContext, KMIPAttention
from graphgps_kmip.attention.kmip import build_kmip
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.testing.references import kmip_attention

SIZES = [5, 0, 1, 7]  # the second graph has no node
PTR = torch.tensor([0, *SIZES]).cumsum(0)
CONTEXT = GraphContext(torch.repeat_interleave(PTR.diff()), PTR)
EXACT = {"rtol": 1e-12, "atol": 1e-12}
HEADS = 2


def layer(pad_keys: bool = False, repeat_first_key: bool = False, **options: Any) -> KMIPAttention:
    faults = {"gt.kmip.pad_keys": pad_keys, "gt.kmip.repeat_first_key": repeat_first_key}
    return repeat_faults(build_kmip(8, HEADS, dim_kq=3, **options).double(), faults)


def nodes() -> Tensor:
    return torch.randn(13, 8, dtype=torch.float64)


def heads(attention: KMIPAttention, x: Tensor) -> list[Tensor]:
    linears = attention.query, attention.key, attention.value
    return [linear(x).unflatten(1, (HEADS, -1)) for linear in linears]


def padded_by_hand(attention: KMIPAttention, x: Tensor, size: int, k: int) -> Tensor:
    """The formula on every graph with rows of zeros below it, cut off again afterwards."""
    out = []
    for graph in x.split(SIZES):
        rows = torch.cat([graph, graph.new_zeros(size - len(graph), 8)])
        out.append(kmip_attention(*heads(attention, rows), [0, size], k)[: len(graph)])
    return torch.cat(out).flatten(1)


@pytest.mark.parametrize("k", [1, 4, 7, 20])
def test_padding_takes_part_as_keys(k: int) -> None:
    attention, x = layer(k=k, pad_keys=True), nodes()
    torch.testing.assert_close(attention(x, CONTEXT), padded_by_hand(attention, x, 7, k), **EXACT)


def repeated_by_hand(attention: KMIPAttention, x: Tensor, k: int) -> Tensor:
    """Graph by graph, query by query: the best keys, then key 0 until there are k."""
    out = []
    for graph in (rows for rows in x.split(SIZES) if len(rows)):
        q, key, v = heads(attention, graph)
        for query in range(len(graph)):
            for head in range(HEADS):
                score = key[:, head] @ q[query, head]
                best = score.topk(min(k, len(graph))).indices.tolist()
                taken = best + [0] * (k - len(best))
                out.append((score[taken] / 3**0.5).softmax(0) @ v[taken, head])
    return torch.stack(out).view(len(x), -1)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_the_first_key_counts_again_in_each_missing_slot(k: int) -> None:
    attention, x = layer(k=k, repeat_first_key=True), nodes()
    torch.testing.assert_close(attention(x, CONTEXT), repeated_by_hand(attention, x, k), **EXACT)
    right = layer(k=k)
    right.load_state_dict(attention.state_dict())
    difference = (attention(x, CONTEXT) - right(x, CONTEXT)).abs().max()
    assert bool(difference > 1e-3) == (k > 7)


def test_the_learned_graph_names_nodes_and_leaves_padding_out() -> None:
    attention, x = layer(k=4, pad_keys=True), nodes()
    graph = attention.attention_graph(x, CONTEXT)
    assert graph.index.shape == (HEADS, 13, 4)
    real = graph.index >= 0
    same_graph = CONTEXT.batch[graph.index.clamp(min=0)] == CONTEXT.batch[:, None]
    assert same_graph[real].all()
    assert not graph.weight[~real].any()
    v = heads(attention, x)[2].transpose(0, 1)  # (H, N, C)
    mixed = torch.stack([(graph.weight[h][..., None] * v[h][graph.index[h].clamp(min=0)]).sum(1) for h in range(HEADS)])
    missing = 1 - graph.weight.sum(-1)  # the weight of padding, whose value is the bias
    bias = attention.value.bias.view(HEADS, 1, -1)
    expected = (mixed + missing[..., None] * bias).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attention(x, CONTEXT), expected, **EXACT)
    assert (missing[:, :6] > 1e-3).any()
