"""Attention along edges against sums written out, and its odd cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.ops.edge_attention import edge_attention

EDGES = torch.tensor([[0, 3, 3, 1, 2, 0, 3], [2, 0, 2, 2, 0, 3, 2]])  # (3, 2) twice; nothing goes to node 1


def tensors(dtype: torch.dtype = torch.float64, channels: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q (4, 2, 3), k (4, 2, 3), v (4, 2, channels) and a bias (7, 2)."""
    shapes = (4, 2, 3), (4, 2, 3), (4, 2, channels), (7, 2)
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)


def by_loops(q: Tensor, k: Tensor, v: Tensor, edge_index: Tensor, bias: Tensor | None = None) -> Tensor:
    out = []
    for node, head in ((n, h) for n in range(q.size(0)) for h in range(q.size(1))):
        edges = [e for e in range(edge_index.size(1)) if edge_index[1, e] == node]
        if bias is not None:
            edges = [e for e in edges if bias[e, head] > -math.inf]
        total, weighted = 0.0, torch.zeros(v.size(-1), dtype=v.dtype)
        for e in edges:
            source = edge_index[0, e]
            score = q[node, head] @ k[source, head] / math.sqrt(q.size(-1))
            unnormalised = (score if bias is None else score + bias[e, head]).exp()
            total, weighted = total + unnormalised, weighted + unnormalised * v[source, head]
        out.append(weighted / total if edges else weighted)
    return torch.stack(out).view(*q.shape[:2], -1)


@pytest.mark.parametrize("biased", [False, True])
def test_it_equals_the_sums_written_out(biased: bool) -> None:
    q, k, v, bias = tensors()
    bias = bias if biased else None
    expected = by_loops(q, k, v, EDGES, bias)
    torch.testing.assert_close(edge_attention(q, k, v, EDGES, bias), expected, rtol=1e-13, atol=1e-13)


def test_gradients_equal_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda q, k, v, b: edge_attention(q, k, v, EDGES, b), tensors())


def test_queries_without_edges_get_zero_and_no_gradient_turns_into_nan() -> None:
    q, k, v, _ = tensors()
    bias = torch.full((7, 2), -math.inf, dtype=torch.float64)
    bias[1] = 0.5  # only the edge 3 -> 0 remains
    out = edge_attention(q, k, v, EDGES, bias)
    torch.testing.assert_close(out[0], v[3], rtol=0, atol=1e-15)
    assert not out[1:].any()
    out.square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))


def test_queries_and_keys_may_be_of_different_sets() -> None:
    q, k, v, _ = tensors()
    edges = torch.tensor([[3, 0, 2], [1, 1, 0]])
    expected = by_loops(q[:2], k, v, edges)
    torch.testing.assert_close(edge_attention(q[:2], k, v, edges), expected, rtol=1e-13, atol=1e-13)


def test_without_edges_or_nodes_the_output_is_empty_of_values() -> None:
    q, k, v, _ = tensors()
    none = torch.empty(2, 0, dtype=torch.long)
    assert not edge_attention(q, k, v, none).any()
    assert edge_attention(q[:0], k[:0], v[:0], none).shape == (0, 2, 5)


def test_halves_are_computed_in_float32() -> None:
    q, k, v, bias = (tensor.detach().bfloat16() for tensor in tensors())
    out = edge_attention(q, k, v, EDGES, bias)
    assert out.dtype == torch.bfloat16
    expected = edge_attention(q.float(), k.float(), v.float(), EDGES, bias.float())
    torch.testing.assert_close(out, expected.bfloat16(), rtol=0, atol=0)


def test_dropout_keeps_the_mean() -> None:
    q, k, v, _ = (tensor.detach() for tensor in tensors(channels=1))
    index = torch.stack([torch.arange(4).repeat(5000), torch.arange(20000) // 4])  # 5000 queries, 4 keys each
    q, v = q[:1].expand(5000, -1, -1), v.abs() + 1
    dropped, kept = edge_attention(q, k, v, index, dropout=0.5), edge_attention(q, k, v, index)
    torch.testing.assert_close(dropped.mean(0), kept.mean(0), rtol=0.05, atol=0)
    assert (dropped == 0).any()
