"""Attention along given edges with clamped scores against the formula, edge by edge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import edge_attention as clamped
from graphgps_kmip.attention.edge_attention import clamped_attention

NODES, ROWS, EDGES, SHAPE = 9, 5, 40, (2, 3)
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def make(scale: float = 1.0, num_edges: int = EDGES) -> tuple[list[Tensor], Tensor]:
    """Return q, k, v, e (float64, with gradients) and edges; the last node has no edge."""
    heads = [torch.randn(count, *SHAPE, dtype=torch.float64) * scale for count in (NODES, NODES, NODES, ROWS)]
    edges = torch.stack([torch.randint(0, count, (num_edges,)) for count in (NODES - 1, NODES - 1, ROWS)])
    return [tensor.requires_grad_() for tensor in heads], edges


def by_edge(q: Tensor, k: Tensor, v: Tensor, e: Tensor, edges: Tensor) -> Tensor:
    num_heads, dim = q.shape[1:]
    rows = []
    for node in range(len(q)):
        inside = [(j, r) for j, i, r in edges.T.tolist() if i == node]
        for head in range(num_heads):
            total, weighted = torch.tensor(1e-6, dtype=q.dtype), torch.zeros(dim, dtype=q.dtype)
            for j, r in inside:
                logit = sum(q[node, head, d] * k[j, head, d] * e[r, head, d] for d in range(dim)) / math.sqrt(dim)
                score = logit.clamp(-5, 5).exp()
                total, weighted = total + score, weighted + score * v[j, head]
            rows.append(weighted / total)
    return torch.stack(rows).view_as(q)


def gradients(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    torch.manual_seed(7)
    return torch.autograd.grad((out * torch.randn_like(out)).sum(), tensors)


@pytest.mark.parametrize("entries", [1, 7 * 6, 2**20], ids=["edge by edge", "seven edges", "all edges"])
@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["small", "clamped"])
def test_output_and_gradients_equal_the_formula(scale: float, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", entries)
    tensors, edges = make(scale)
    out, expected = clamped_attention(*tensors, edges), by_edge(*tensors, edges)
    torch.testing.assert_close(out, expected, **ROUNDING)
    assert not out[-1].any()  # no edge leads there
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(found, wanted, **ROUNDING)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_equal_finite_differences(dropout: float) -> None:
    tensors, edges = make()

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)  # the same edges are dropped in every call
        return clamped_attention(*tensors, edges, dropout)

    assert torch.autograd.gradcheck(attend, tensors)


def test_no_edges_give_zeros_and_zero_gradients() -> None:
    tensors, edges = make(num_edges=0)
    out = clamped_attention(*tensors, edges)
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients(out, tensors))


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    tensors, edges = make()
    tensors, edges = [tensor.detach() for tensor in tensors], edges[:, :1].expand(3, 1)
    values = torch.stack([clamped_attention(*tensors, edges, 0.25)[edges[1, 0]] for _ in range(2000)])
    kept = clamped_attention(*tensors, edges)[edges[1, 0]]
    share = values.ne(0).double().mean((0, 2))
    torch.testing.assert_close(share, torch.full_like(share, 0.75), rtol=0, atol=0.04)  # four standard errors
    torch.testing.assert_close(values.amax(0).abs() + values.amin(0).abs(), kept.abs() / 0.75, rtol=1e-12, atol=0)


def test_halves_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", 1)  # torch sums one chunk in float32 by itself
    (q, k, v, e), _ = make()
    source = torch.arange(600) // 300  # a sum in bfloat16 would stop growing before the second source has its turn
    halves = [tensor.detach().bfloat16() for tensor in (q, k, v, 0 * e)]
    out = clamped_attention(*halves, torch.stack([source, 0 * source, 0 * source]))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0].float(), halves[2][:2].float().mean(0), rtol=1e-2, atol=1e-2)


def test_forward_and_backward_repeat_bit_for_bit() -> None:
    tensors, edges = make(num_edges=2000)
    runs = [(clamped_attention(*tensors, edges)) for _ in range(2)]
    assert torch.equal(*runs)
    assert all(torch.equal(*pair) for pair in zip(*(gradients(run, tensors) for run in runs), strict=True))


def test_nothing_as_long_as_the_edges_is_kept() -> None:
    tensors, edges = make(num_edges=1000)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        clamped_attention(*tensors, edges)
    assert saved
    assert all(tensor is edges or tensor.shape == edges.shape or tensor.size(0) <= NODES for tensor in saved)
