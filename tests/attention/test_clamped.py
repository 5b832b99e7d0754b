"""Clamped attention along edges against the formula, edge by edge, and its C loop against torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.ops import clamped_attention as clamped
from graphgps_kmip.ops.clamped_attention import clamped_attention, edge_weights
from graphgps_kmip.ops.native import unavailable_reason
from tests.native.vector_units import VECTOR_UNITS

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

    assert torch.autograd.gradcheck(output, tensors, fast_mode=True)


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


KERNEL_FORMS: dict[str, dict[str, Any]] = {
    "exphormer": {},
    "estimator": {"limit": 8.0, "scale": 1.0},
    "sampled": {"limit": 8.0, "scale": 1.0, "eps": 0.0},
}
CHUNK = 2**18  # edges that the backward of the C loop takes at a time


def case(
    num_edges: int, heads: int = 2, dim: int = 3, kinds: int = 3, sizes: tuple[int, int] = (50, 70), **form: Any
) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Return q, k, v, e and bias (float64, with gradients), edges sorted by target, and the form's arguments.

    The first, a middle and the last query have no edges, and one query has a fifth of all.
    """
    targets, sources = sizes
    channels = 1 if form.get("scale") and not form.get("eps", 1) == 0 else dim
    shapes = (
        (targets, heads, dim),
        (sources, heads, dim),
        (sources, heads, dim),
        (kinds, heads, channels),
        (kinds, heads),
    )
    tensors = [torch.randn(shape, dtype=torch.float64).mul_(2).requires_grad_() for shape in shapes]
    target = torch.randint(1, targets - 1, (num_edges,))
    target[target == targets // 2] = 1
    target[: num_edges // 5] = 2
    edges = torch.stack(
        [torch.randint(sources, (num_edges,)), target.sort().values, torch.randint(kinds, (num_edges,))]
    )
    return tensors, edges, form


def results(tensors: list[Tensor], edges: Tensor, form: dict[str, Any], dropout: float = 0.0) -> tuple[Tensor, ...]:
    """Return output and gradients."""
    torch.manual_seed(3)  # the same edges are dropped in every call
    *heads, bias = tensors
    out = clamped_attention(*heads, edges, dropout, bias=bias, **form)
    return out, *torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), tensors)


def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk all edges by torch."""
    monkeypatch.setattr(clamped, "unavailable_reason", lambda *_: "no compiler")


def assert_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for name, one, other in zip(("out", "q", "k", "v", "e", "bias"), found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=lambda words, name=name: f"{name}: {words}")


@needs_c
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("num_edges", [0, 1, 7, 900])
@pytest.mark.parametrize("form", KERNEL_FORMS)
def test_output_and_gradients_equal_those_by_torch(
    form: str, num_edges: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(num_edges, **KERNEL_FORMS[form])
    assert clamped._sorted_edges(*tensors[:2], tensors[3], edges) is not None  # so that the C loop walks them
    found = results(tensors, edges, options, dropout)
    by_torch(monkeypatch)
    assert_equal(found, results(tensors, edges, options, dropout))


@needs_c
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("form", KERNEL_FORMS)
def test_edges_with_features_of_their_own_beside_kinds_equal_those_by_torch(
    form: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(400, kinds=300, dim=12, **KERNEL_FORMS[form])
    own = torch.arange(400) % 3 > 0
    edges[2] = 7  # shared; row 8 has no edge
    edges[2, own] = torch.randperm(291)[: int(own.sum())] + 9
    found = clamped._sorted_edges(*tensors[:2], tensors[3], edges)
    assert found.shared.tolist() == [7]
    assert (found.kind == -1).sum() == own.sum()
    computed = results(tensors, edges, options, dropout)
    assert not computed[4][8].any()
    by_torch(monkeypatch)
    assert_equal(computed, results(tensors, edges, options, dropout))


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 2), (1, 4), (2, 8), (1, 9), (2, 12), (2, 16), (1, 32), (1, 37)])
def test_every_width_of_the_loops_equals_torch(heads: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(300, heads, dim, kinds=16, **KERNEL_FORMS["sampled"])
    found = results(tensors, edges, options)
    by_torch(monkeypatch)
    assert_equal(found, results(tensors, edges, options))


@needs_c
@pytest.mark.parametrize("threads", [1, 2, 3, 20])
def test_chunks_and_threads_change_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(2 * CHUNK + 5, 1, 2, sizes=(900, 300), **KERNEL_FORMS["estimator"])
    tensors = [tensor.detach().float().requires_grad_() for tensor in tensors]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    expected = results(tensors, edges, options)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert all(torch.equal(*pair) for pair in zip(results(tensors, edges, options), expected, strict=True))
    if threads == 1:
        doubled = [tensor.detach().double().requires_grad_() for tensor in tensors]
        found = results(doubled, edges, options)
        by_torch(monkeypatch)
        assert_equal(found, results(doubled, edges, options))


@needs_c
def test_edges_that_are_not_sorted_or_of_many_kinds_are_walked_by_torch() -> None:
    (q, k, v, e, bias), edges, options = case(300, **KERNEL_FORMS["estimator"])
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
def test_an_edge_of_a_row_that_is_not_there_is_refused(row: int, wrong: int) -> None:
    (q, k, v, e, bias), edges, options = case(300, **KERNEL_FORMS["estimator"])
    edges[row, 0 if wrong < 0 else -1] = wrong
    with pytest.raises(IndexError, match="below 70, 50, 3"):
        clamped_attention(q, k, v, e, edges, bias=bias, **options)


@needs_c
def test_a_logit_that_is_not_a_number_stays_one() -> None:
    tensors, edges, options = case(300, **KERNEL_FORMS["estimator"])
    with torch.no_grad():
        tensors[1][edges[0, 0]] = torch.nan
    out, *_ = results(tensors, edges, options)
    assert out[edges[1, 0]].isnan().all()
    assert out[edges[1, -1]].isfinite().all() == (edges[0, edges[1] == edges[1, -1]] != edges[0, 0]).all()
