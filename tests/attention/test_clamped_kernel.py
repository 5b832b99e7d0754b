"""The C loop of clamped attention along sorted edges against torch's chunks, which are tested by the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import clamped_attention as clamped
from graphgps_kmip.attention.clamped_attention import clamped_attention, edge_weights
from graphgps_kmip.native import unavailable_reason
from tests.native.vector_units import VECTOR_UNITS

pytestmark = pytest.mark.skipif(unavailable_reason(clamped.KERNEL) is not None, reason="no C compiler")

FORMS: dict[str, dict[str, Any]] = {
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


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("num_edges", [0, 1, 7, 900])
@pytest.mark.parametrize("form", FORMS)
def test_output_and_gradients_equal_those_by_torch(
    form: str, num_edges: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(num_edges, **FORMS[form])
    assert clamped._sorted_edges(*tensors[:2], tensors[3], edges) is not None  # so that the C loop walks them
    found = results(tensors, edges, options, dropout)
    by_torch(monkeypatch)
    assert_equal(found, results(tensors, edges, options, dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("form", FORMS)
def test_edges_with_features_of_their_own_beside_kinds_equal_those_by_torch(
    form: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, edges, options = case(400, kinds=300, dim=12, **FORMS[form])
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


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 2), (1, 4), (2, 8), (1, 9), (2, 12), (2, 16), (1, 32), (1, 37)])
def test_every_width_of_the_loops_equals_torch(heads: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(300, heads, dim, kinds=16, **FORMS["sampled"])
    found = results(tensors, edges, options)
    by_torch(monkeypatch)
    assert_equal(found, results(tensors, edges, options))


@pytest.mark.parametrize("threads", [1, 2, 3, 20])
def test_chunks_and_threads_change_no_bit(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, edges, options = case(2 * CHUNK + 5, 1, 2, sizes=(900, 300), **FORMS["estimator"])
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


def test_weights_of_edges_equal_those_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, _, e, bias), edges, options = case(900, **FORMS["estimator"])
    found = edge_weights(q, k, e, edges, bias=bias, **options)
    by_torch(monkeypatch)
    torch.testing.assert_close(found, edge_weights(q, k, e, edges, bias=bias, **options), rtol=1e-9, atol=1e-12)


def test_edges_that_are_not_sorted_or_of_many_kinds_are_walked_by_torch() -> None:
    (q, k, v, e, bias), edges, options = case(300, **FORMS["estimator"])
    expected = clamped_attention(q, k, v, e, edges, bias=bias, **options)
    mixed = edges[:, torch.randperm(300)]
    assert clamped._sorted_edges(q, k, e, mixed) is None
    shared_by_two = torch.stack([*edges[:2], torch.arange(300) % 20])
    assert clamped._sorted_edges(q, k, e.repeat(7, 1, 1), shared_by_two) is None
    assert clamped._sorted_edges(q, k, e, edges.T.contiguous().T) is None
    torch.testing.assert_close(clamped_attention(q, k, v, e, mixed, bias=bias, **options), expected)


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("wrong", [-1, 70])
def test_an_edge_of_a_row_that_is_not_there_is_refused(row: int, wrong: int) -> None:
    (q, k, v, e, bias), edges, options = case(300, **FORMS["estimator"])
    edges[row, 0 if wrong < 0 else -1] = wrong
    with pytest.raises(IndexError, match="below 70, 50, 3"):
        clamped_attention(q, k, v, e, edges, bias=bias, **options)


def test_a_logit_that_is_not_a_number_stays_one() -> None:
    tensors, edges, options = case(300, **FORMS["estimator"])
    with torch.no_grad():
        tensors[1][edges[0, 0]] = torch.nan
    out, *_ = results(tensors, edges, options)
    assert out[edges[1, 0]].isnan().all()
    assert out[edges[1, -1]].isfinite().all() == (edges[0, edges[1] == edges[1, -1]] != edges[0, 0]).all()


def test_derivatives_equal_finite_differences() -> None:
    tensors, edges, options = case(12, sizes=(5, 6), **FORMS["sampled"])
    tensors = [(tensor.detach() / 2).requires_grad_() for tensor in tensors]

    def output(*given: Tensor) -> Tensor:
        *heads, bias = given
        return clamped_attention(*heads, edges, bias=bias, **options)

    assert torch.autograd.gradcheck(output, tensors)
