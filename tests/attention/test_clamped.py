"""Clamped attention along edges against the formula, edge by edge, and its C loop against torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.ops import clamped_attention as clamped
from graphgps_kmip.ops.clamped_attention import clamped_attention
from graphgps_kmip.ops.native import unavailable_reason
from tests.native.vector_units import VECTOR_UNITS

NODES, SOURCES, ROWS, EDGES, SHAPE = 9, 13, 5, 40, (2, 3)
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
# Exphormer's form, and those of the two stages of the low-width method: one channel of e serves for all, or eps is 0.
FORMS: dict[str, dict[str, Any]] = {
    "exphormer": {},
    "estimator": {"limit": 8.0, "scale": 1.0},
    "sampled": {"limit": 8.0, "scale": 1.0, "eps": 0.0},
}


def make(scale: float = 1.0, num_edges: int = EDGES, form: str = "exphormer") -> tuple[list[Tensor], Tensor]:
    """Return q, k, v, e and bias (float64, with gradients), and edges, of which none leads to the last query."""
    channels = 1 if form == "estimator" else SHAPE[1]
    sizes = [(NODES, *SHAPE), (SOURCES, *SHAPE), (SOURCES, *SHAPE), (ROWS, SHAPE[0], channels), (ROWS, SHAPE[0])]
    heads = [torch.randn(*size, dtype=torch.float64) * scale for size in sizes]
    edges = torch.stack([torch.randint(0, count, (num_edges,)) for count in (SOURCES, NODES - 1, ROWS)])
    return [tensor.requires_grad_() for tensor in heads], edges


def attend(tensors: Sequence[Tensor], edges: Tensor, form: str = "exphormer", dropout: float = 0.0) -> Tensor:
    *heads, bias = tensors
    return clamped_attention(*heads, edges, dropout, bias=bias, **FORMS[form])


def by_edge(tensors: Sequence[Tensor], edges: Tensor, form: str = "exphormer") -> Tensor:
    q, k, v, e, bias = tensors
    num_heads, dim = q.shape[1:]
    limit, eps = FORMS[form].get("limit", 5.0), FORMS[form].get("eps", 1e-6)
    scale, rows, e = FORMS[form].get("scale", 1 / math.sqrt(dim)), [], e.expand(-1, -1, dim)
    for node in range(len(q)):
        inside = [(j, r) for j, i, r in edges.T.tolist() if i == node]
        for head in range(num_heads):
            total, weighted = torch.tensor(eps, dtype=q.dtype), torch.zeros(dim, dtype=q.dtype)
            for j, r in inside:
                logit = scale * sum(q[node, head, d] * k[j, head, d] * e[r, head, d] for d in range(dim))
                score = (logit + bias[r, head]).clamp(-limit, limit).exp()
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
    torch.testing.assert_close(gradients(out, tensors), gradients(expected, tensors), **ROUNDING)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_equal_finite_differences_with_the_same_edges_dropped(form: str) -> None:
    tensors, edges = make(num_edges=12, form=form)

    def output(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend(tensors, edges, form, 0.4)

    assert torch.autograd.gradcheck(output, tensors, fast_mode=True)


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    tensors, edges = make()
    tensors, edges = [tensor.detach() for tensor in tensors], edges[:, :1].expand(3, 1)
    values = torch.stack([attend(tensors, edges, dropout=0.25)[edges[1, 0]] for _ in range(1000)])
    undropped = attend(tensors, edges)[edges[1, 0]]
    share = values.ne(0).double().mean((0, 2))
    torch.testing.assert_close(share, torch.full_like(share, 0.75), rtol=0, atol=0.055)  # four standard errors
    torch.testing.assert_close(values.amax(0).abs() + values.amin(0).abs(), undropped.abs() / 0.75, rtol=1e-12, atol=0)


def test_halves_are_summed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(clamped.CHUNK_ENTRIES, "cpu", 1)  # torch sums one chunk in float32 by itself
    (q, k, v, e, _), _ = make()
    source = torch.arange(600) // 300  # a sum in bfloat16 would stop growing before the second source has its turn
    halves = [tensor.detach().bfloat16() for tensor in (q, k, v, 0 * e)]
    out = clamped_attention(*halves, torch.stack([source, 0 * source, 0 * source]))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0].float(), halves[2][:2].float().mean(0), rtol=1e-2, atol=1e-2)


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


needs_c = pytest.mark.skipif(unavailable_reason(clamped.KERNEL) is not None, reason="no C compiler")


CHUNK = 2**18  # edges that the backward of the C loop takes at a time


def case(
    num_edges: int, form: str, heads: int = 2, dim: int = 3, kinds: int = 3, sizes: tuple[int, int] = (50, 70)
) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Return q, k, v, e and bias (float64, with gradients), edges sorted by target, and the form's arguments.

    The first, a middle and the last query have no edges, and one query has a fifth of all.
    """
    targets, sources = sizes
    nodes = [(size, heads, dim) for size in (targets, sources, sources)]
    shapes = (*nodes, (kinds, heads, 1 if form == "estimator" else dim), (kinds, heads))
    tensors = [torch.randn(shape, dtype=torch.float64).mul_(2).requires_grad_() for shape in shapes]
    target = torch.randint(1, targets - 1, (num_edges,))
    target[target == targets // 2] = 1
    target[: num_edges // 5] = 2
    source, kind = torch.randint(sources, (num_edges,)), torch.randint(kinds, (num_edges,))
    return tensors, torch.stack([source, target.sort().values, kind]), FORMS[form]


def results(tensors: list[Tensor], edges: Tensor, form: dict[str, Any], dropout: float = 0.0) -> tuple[Tensor, ...]:
    torch.manual_seed(3)  # the same edges are dropped in every call
    *heads, bias = tensors
    out = clamped_attention(*heads, edges, dropout, bias=bias, **form)
    return out, *torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), tensors)


def assert_c_equals_torch(
    tensors: list[Tensor], edges: Tensor, form: dict[str, Any], dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = results(tensors, edges, form, dropout)
    monkeypatch.setattr(clamped, "unavailable_reason", lambda *_: "no compiler")
    torch.testing.assert_close(fused, results(tensors, edges, form, dropout), rtol=1e-9, atol=1e-9)


@needs_c
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("num_edges", [0, 1, 7, 900])
@pytest.mark.parametrize("form", FORMS)
def test_output_and_gradients_equal_those_by_torch(
    form: str, num_edges: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(num_edges, form)
    assert clamped._sorted_edges(*tensors[:2], tensors[3], edges) is not None  # so that the C loop walks them
    assert_c_equals_torch(tensors, edges, options, dropout, monkeypatch)


@needs_c
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("form", FORMS)
def test_edges_with_features_of_their_own_and_kinds_equal_those_by_torch(
    form: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(400, form, kinds=300, dim=12)
    single = torch.arange(400) % 3 > 0
    edges[2] = 7  # shared; row 8 has no edge
    edges[2, single] = torch.randperm(291)[: int(single.sum())] + 9
    walked = clamped._sorted_edges(*tensors[:2], tensors[3], edges)
    assert walked.shared.tolist() == [7]
    assert (walked.kind == -1).sum() == single.sum()
    assert not results(tensors, edges, options, dropout)[4][8].any()
    assert_c_equals_torch(tensors, edges, options, dropout, monkeypatch)


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 2), (1, 4), (2, 8), (1, 9), (2, 12), (2, 16), (1, 32), (1, 37)])
def test_every_width_of_the_loops_equals_torch(heads: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(300, "sampled", heads, dim, kinds=16)
    assert_c_equals_torch(tensors, edges, options, 0.0, monkeypatch)


@needs_c
def test_chunks_and_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(2 * CHUNK + 5, "estimator", 1, 2, sizes=(900, 300))
    tensors, runs = [tensor.detach().float().requires_grad_() for tensor in tensors], []
    for threads in (1, 2, 3, 20):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        runs.append(results(tensors, edges, options))
    assert all(torch.equal(*pair) for run in runs[1:] for pair in zip(run, runs[0], strict=True))
    doubled = [tensor.detach().double().requires_grad_() for tensor in tensors]
    assert_c_equals_torch(doubled, edges, options, 0.0, monkeypatch)


@needs_c
def test_edges_that_are_not_sorted_or_of_many_kinds_are_walked_by_torch() -> None:
    (q, k, v, e, bias), edges, options = case(300, "estimator")
    expected = clamped_attention(q, k, v, e, edges, bias=bias, **options)
    mixed = edges[:, torch.randperm(300)]
    assert clamped._sorted_edges(q, k, e, mixed) is None
    shared_by_two = torch.stack([*edges[:2], torch.arange(300) % 20])
    assert clamped._sorted_edges(q, k, e.repeat(7, 1, 1), shared_by_two) is None
    assert clamped._sorted_edges(q, k, e, edges.T.contiguous().T) is None
    torch.testing.assert_close(clamped_attention(q, k, v, e, mixed, bias=bias, **options), expected)


@needs_c
@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("wrong", [-1, 70])
def test_an_edge_of_a_row_that_does_not_exist_is_refused(row: int, wrong: int) -> None:
    tensors, edges, _ = case(300, "estimator")
    edges[row, 0 if wrong < 0 else -1] = wrong
    with pytest.raises(IndexError, match="below 70, 50, 3"):
        attend(tensors, edges, "estimator")


@needs_c
def test_a_logit_that_is_not_a_number_stays_one() -> None:
    tensors, edges, options = case(300, "estimator")
    with torch.no_grad():
        tensors[1][edges[0, 0]] = torch.nan
    out, *_ = results(tensors, edges, options)
    assert out[edges[1, 0]].isnan().all()
    assert out[edges[1, -1]].isfinite().all() == (edges[0, edges[1] == edges[1, -1]] != edges[0, 0]).all()
