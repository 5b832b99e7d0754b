"""Attention along sampled edges against its formula, edge by edge; rectangular, with few or no edges; its quirk."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import SampledEdgeAttention
from graphgps_kmip.compat.public_faults import MixedHeadsAttention

DIM, SOURCES, TARGETS = 6, 11, 5
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def case(num_heads: int = 2, scale: float = 1.0) -> tuple[SampledEdgeAttention, Tensor, Tensor, Tensor]:
    """Return attention, x, edges and types (float64); the last target has no edge."""
    attention = SampledEdgeAttention(DIM, num_heads).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    edges = torch.stack([torch.randint(0, count, (14,)) for count in (SOURCES, TARGETS - 1, 3)])
    x, types = (torch.randn(rows, DIM, dtype=torch.double, requires_grad=True) for rows in (SOURCES, 3))
    return attention, x, edges, types


def by_edge(attention: SampledEdgeAttention, x: Tensor, edges: Tensor, types: Tensor) -> Tensor:
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
def test_output_and_gradients_equal_the_formula(num_heads: int, scale: float) -> None:
    attention, x, edges, types = case(num_heads, scale)
    out, expected = attention(x, edges, TARGETS, types), by_edge(attention, x, edges, types)
    torch.testing.assert_close(out, expected, **ROUNDING)
    assert not out[-1].any()  # no edge leads there
    tensors, cotangent = [x, types, *attention.parameters()], torch.randn_like(out)
    found, wanted = (torch.autograd.grad(one, tensors, cotangent) for one in (out, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_order_of_edges_does_not_count_and_repeats_do() -> None:
    attention, x, edges, types = case()
    out = attention(x, edges, TARGETS, types)
    torch.testing.assert_close(attention(x, edges[:, torch.randperm(14)], TARGETS, types), out, **ROUNDING)
    twice = attention(x, torch.cat([edges, edges], 1), TARGETS, types)  # all weights are halved, and there are two
    torch.testing.assert_close(twice, out, **ROUNDING)
    once_more = attention(x, torch.cat([edges, edges[:, :1]], 1), TARGETS, types)
    same = by_edge(attention, x, torch.cat([edges, edges[:, :1]], 1), types)
    torch.testing.assert_close(once_more, same, **ROUNDING)


def test_equal_logits_give_the_mean_of_the_values() -> None:
    attention, x, _, types = case()
    edges = torch.tensor([[3, 7, 9], [0, 0, 0], [1, 1, 1]])
    attention.query.weight.data.zero_()
    mean = attention.value(x[[3, 7, 9]]).mean(0)
    torch.testing.assert_close(attention(x, edges, TARGETS, types)[0], mean, **ROUNDING)


@pytest.mark.parametrize("targets", [0, 1, SOURCES])
def test_any_number_of_targets_without_edges_gives_zeros(targets: int) -> None:
    attention, x, edges, types = case()
    out = attention(x, edges[:, :0], targets, types)
    assert out.shape == (targets, DIM)
    assert not out.any()
    out.sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_and_keeps_its_dtype(dtype: torch.dtype) -> None:
    attention, x, edges, types = case(scale=0.5)
    expected = attention(x, edges, TARGETS, types).detach()
    out = attention.to(dtype)(x.detach().to(dtype), edges, TARGETS, types.detach().to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=0.1, atol=0.1)


def test_nothing_as_long_as_the_edges_is_kept() -> None:
    attention, x, _, types = case()
    edges = torch.stack([torch.randint(0, count, (1000,)) for count in (SOURCES, TARGETS, 3)])
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        attention(x, edges, TARGETS, types)
    assert max(len(tensor) for tensor in saved if tensor.data_ptr() != edges.data_ptr()) <= SOURCES


def test_mixed_heads_are_no_fault_with_one_head_and_one_with_two() -> None:
    for num_heads in (1, 2):
        attention, x, _, types = case(num_heads)
        target = torch.arange(TARGETS).repeat_interleave(4)
        edges = torch.stack([torch.randint(0, SOURCES, (20,)), target, torch.randint(0, 3, (20,))])
        mixed = MixedHeadsAttention(DIM, num_heads).double()
        mixed.load_state_dict(attention.state_dict())
        out, other = attention(x, edges, TARGETS, types), mixed(x, edges, TARGETS, types)
        if num_heads == 1:
            torch.testing.assert_close(other, out, **ROUNDING)
        else:
            assert (other - out).abs().max() > 0.1


def test_mixed_heads_need_as_many_edges_into_each_node() -> None:
    _, x, edges, types = case()
    with pytest.raises(ValueError, match="repeat_missing"):
        MixedHeadsAttention(DIM, 2).double()(x, edges, TARGETS, types)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="num_heads"):
        SampledEdgeAttention(6, 4)
