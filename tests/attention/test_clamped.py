"""Attention along given edges with clamped scores against the formula, edge by edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import clamped_attention as clamped
from graphgps_kmip.attention.clamped_attention import clamped_attention, edge_weights

NODES, SOURCES, ROWS, EDGES, SHAPE = 9, 13, 5, 40, (2, 3)
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
# Exphormer's form, and those of the two stages of the low-width method: one channel of e serves for all, or eps is 0.
FORMS: dict[str, dict[str, Any]] = {
    "exphormer": {},
    "estimator": {"limit": 8.0, "scale": 1.0, "channels": 1},
    "sampled": {"limit": 8.0, "scale": 1.0, "eps": 0.0, "channels": 3},
}


def make(scale: float = 1.0, num_edges: int = EDGES, form: str = "exphormer") -> tuple[list[Tensor], Tensor]:
    """Return q, k, v, e and, for forms that have one, the bias (float64, with gradients), and edges.

    No edge leads to the last query.
    """
    channels = FORMS[form].get("channels")
    sizes = [(NODES, *SHAPE), (SOURCES, *SHAPE), (SOURCES, *SHAPE), (ROWS, SHAPE[0], channels or SHAPE[1])]
    sizes += [(ROWS, SHAPE[0])] if channels else []
    heads = [torch.randn(*size, dtype=torch.float64) * scale for size in sizes]
    edges = torch.stack([torch.randint(0, count, (num_edges,)) for count in (SOURCES, NODES - 1, ROWS)])
    return [tensor.requires_grad_() for tensor in heads], edges


def attend(tensors: Sequence[Tensor], edges: Tensor, form: str = "exphormer", dropout: float = 0.0) -> Tensor:
    """Call the operator in a form."""
    q, k, v, e, *bias = tensors
    options = {key: value for key, value in FORMS[form].items() if key != "channels"}
    return clamped_attention(q, k, v, e, edges, dropout, bias=bias[0] if bias else None, **options)


def by_edge(tensors: Sequence[Tensor], edges: Tensor, form: str = "exphormer") -> Tensor:
    q, k, v, e, *bias = tensors
    num_heads, dim = q.shape[1:]
    limit, eps = FORMS[form].get("limit", 5.0), FORMS[form].get("eps", 1e-6)
    scale, rows, e = FORMS[form].get("scale", 1 / math.sqrt(dim)), [], e.expand(-1, -1, dim)
    for node in range(len(q)):
        inside = [(j, r) for j, i, r in edges.T.tolist() if i == node]
        for head in range(num_heads):
            total, weighted = torch.tensor(eps, dtype=q.dtype), torch.zeros(dim, dtype=q.dtype)
            for j, r in inside:
                logit = scale * sum(q[node, head, d] * k[j, head, d] * e[r, head, d] for d in range(dim))
                logit = logit + bias[0][r, head] if bias else logit
                score = logit.clamp(-limit, limit).exp()
                total, weighted = total + score, weighted + score * v[j, head]
            rows.append(weighted / total if inside else weighted)
    return torch.stack(rows).view_as(q)


def gradients(out: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    torch.manual_seed(7)
    return torch.autograd.grad((out * torch.randn_like(out)).sum(), tensors)


@pytest.mark.parametrize("entries", [1, 7 * 6, 2**20], ids=["edge by edge", "seven edges", "all edges"])
@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["small", "clamped"])
@pytest.mark.parametrize("form", FORMS)
def test_output_and_gradients_equal_the_formula(
    form: str, scale: float, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", entries)
    tensors, edges = make(scale, form=form)
    out, expected = attend(tensors, edges, form), by_edge(tensors, edges, form)
    torch.testing.assert_close(out, expected, **ROUNDING)
    assert not out[-1].any()  # no edge leads there
    for found, wanted in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(found, wanted, **ROUNDING)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_equal_finite_differences(form: str, dropout: float) -> None:
    tensors, edges = make(num_edges=12, form=form)

    def output(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)  # the same edges are dropped in every call
        return attend(tensors, edges, form, dropout)

    assert torch.autograd.gradcheck(output, tensors)


@pytest.mark.parametrize("form", FORMS)
def test_no_edges_give_zeros_and_zero_gradients(form: str) -> None:
    tensors, edges = make(num_edges=0, form=form)
    out = attend(tensors, edges, form)
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients(out, tensors))


@pytest.mark.parametrize("form", FORMS)
def test_an_edge_that_is_given_twice_counts_twice(form: str) -> None:
    (_, _, v, *_), _ = tensors, _ = make(form=form)
    still = [torch.zeros_like(tensor) if tensor is not v else v for tensor in tensors]  # all logits are 0
    out = attend(still, torch.tensor([[3, 3, 4], [0, 0, 0], [1, 1, 1]]), form)
    torch.testing.assert_close(out[0], (2 * v[3] + v[4]) / 3, rtol=1e-6, atol=0)


@pytest.mark.parametrize("entries", [7 * 6, 2**20], ids=["seven edges", "all edges"])
@pytest.mark.parametrize("form", FORMS)
def test_weights_of_edges_are_those_of_the_output(form: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", entries)
    (q, k, v, e, *bias), edges = tensors, _ = make(2.0, form=form)
    options = {key: value for key, value in FORMS[form].items() if key in ("limit", "scale")}
    weight = edge_weights(q, k, e, edges, bias=bias[0] if bias else None, **options)
    assert not weight.requires_grad
    total = weight.new_zeros(q.shape[:2]).index_add(0, edges[1], weight)
    torch.testing.assert_close(total[edges[1].unique()], torch.ones_like(total[edges[1].unique()]))
    out = torch.zeros_like(q).index_add(0, edges[1], weight[..., None] * v[edges[0]])
    tolerance = 3e-3 if FORMS[form].get("eps", 1e-6) else 1e-12  # 1e-6 to a sum, which is e^-8 at least
    torch.testing.assert_close(out, attend(tensors, edges, form), rtol=tolerance, atol=tolerance)


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


@pytest.mark.parametrize("form", FORMS)
def test_nothing_as_long_as_the_edges_is_kept(form: str) -> None:
    tensors, edges = make(num_edges=1000, form=form)
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attend(tensors, edges, form)
    assert saved
    assert all(tensor is edges or tensor.shape == edges.shape or tensor.size(0) <= SOURCES for tensor in saved)
