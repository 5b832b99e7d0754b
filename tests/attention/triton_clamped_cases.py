"""The Triton kernels of clamped attention against torch's chunks; run by test_triton_clamped.py in its own process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import triton_clamped_attention
from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.common import triton_lists
from graphgps_kmip.native import without_kernels
from tests.attention.test_clamped_kernel import FORMS, case, results
from tests.pairwise import pairwise
from tests.search.triton_runs import DEVICE, check_sees_a_wrong_gradient

thorough = pytest.mark.thorough  # the interpreter takes up to a second for each


def example(num_edges: int, form: str, dim: int = 3, heads: int = 2) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Of 9 queries and 8 keys, in any order of the edges, with edge features of 4 kinds."""
    tensors, edges, options = case(num_edges, heads, dim, kinds=4, sizes=(9, 8), **FORMS[form])
    edges = edges[:, torch.randperm(num_edges)]
    return [one.detach().to(DEVICE).requires_grad_() for one in tensors], edges.to(DEVICE), options


CASES = pairwise(list(FORMS), [40, 1, 0], [(3, 2), (16, 1)], [4, 512], [0.0, 0.4])
FEW = [
    ("exphormer", 40, (3, 2), 4, 0.4), ("estimator", 40, (3, 2), 512, 0.0), ("sampled", 40, (16, 1), 4, 0.0),
    ("sampled", 0, (3, 2), 512, 0.0), ("exphormer", 1, (16, 1), 512, 0.4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "num_edges", "sizes", "chunk", "dropout"),
    [pytest.param(*one, marks=[] if one in FEW else [thorough]) for one in dict.fromkeys([*FEW, *CASES])],
)
def test_output_and_gradients_equal_those_by_torch(
    form: str, num_edges: int, sizes: tuple[int, int], chunk: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_lists, "CHUNK", chunk)  # 4: the list of the query with most edges is split
    given = example(num_edges, form, *sizes)
    found = results(*given, dropout)
    with without_kernels():
        expected = results(*given, dropout)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_the_kernels_are_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("clamped_attention_forward", "clamped_attention_backward"):
        kernel = getattr(triton_clamped_attention, name)
        monkeypatch.setattr(triton_clamped_attention, name, lambda *given, k=kernel: calls.append(k) or k(*given))
    results(*example(10, "exphormer"))
    assert len(calls) == 2
    with without_kernels():
        results(*example(10, "exphormer"))
    assert len(calls) == 2


def test_heads_of_more_than_256_channels_are_left_to_torch() -> None:
    queries = (torch.empty(1, 2, dim, device=DEVICE) for dim in (256, 257))
    assert [triton_clamped_attention.can_run(q) for q in queries] == [True, False]


def test_gradients_of_gradients_equal_finite_differences() -> None:
    tensors, edges, form = example(6, "exphormer", dim=2, heads=1)

    def run(q: Tensor, k: Tensor, v: Tensor, e: Tensor, bias: Tensor) -> Tensor:
        return clamped_attention(q, k, v, e, edges, bias=bias, **form)

    small = [(0.3 * one).detach().requires_grad_() for one in tensors]  # no logit beyond the limit
    assert torch.autograd.gradcheck(run, small, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, small, fast_mode=True)


def test_halves_are_computed_in_float32_and_results_repeat_bit_for_bit() -> None:
    tensors, edges, form = example(40, "exphormer")
    halves = [one.detach().bfloat16().requires_grad_() for one in tensors]
    first, second = results(halves, edges, form), results(halves, edges, form)
    assert {one.dtype for one in first} == {torch.bfloat16}
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with without_kernels():
        expected = results([one.detach().float().requires_grad_() for one in halves], edges, form)
    for one, other in zip(first, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05 * float(other.detach().abs().max()))


def test_what_is_not_a_number_or_not_there_stays_visible() -> None:
    tensors, edges, form = example(40, "exphormer")
    target = int(edges[1, 3])
    for row, wrong in ((0, 8), (2, 4), (0, -1)):
        changed = edges.clone()
        changed[row, 3] = wrong
        *heads, bias = tensors
        assert clamped_attention(*heads, changed, bias=bias, **form)[target].isnan().all()
    with torch.no_grad():
        tensors[1][edges[0, 3]] = torch.nan
    assert results(tensors, edges, form)[0][target].isnan().all()


@thorough
def test_the_check_before_the_first_use_passes_and_sees_a_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sees_a_wrong_gradient(triton_clamped_attention, "clamped_attention_backward", monkeypatch)
