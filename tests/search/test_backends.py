"""Every search backend against float64 brute force, and what they promise beside the answer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem, chunked, topk_inner_product
from graphgps_kmip.search.problem import NotFinite
from graphgps_kmip.testing.references import best_keys
from tests.search.problems import DIM, NUM_KEYS, Ragged, check_answer, ragged, unequal_problems

COMPILED = ("keops", "cpu", "tree")
# the Triton kernel has its cases in test_triton.py: its interpreter needs seconds for a problem
ALL = [
    pytest.param(name, marks=pytest.mark.compiler if name in COMPILED else ())
    for name in entries("search_backend")
    if name != "triton"
]
TORCH_ONLY = ["exact", "chunked", pytest.param("cpu", marks=pytest.mark.compiler)]


def answer(problem: Ragged, backend: str, num_keys: int = NUM_KEYS) -> tuple[Tensor, Tensor]:
    return topk_inner_product(problem.q, problem.k, *problem.ptrs, num_keys, backend)


@pytest.mark.parametrize("backend", ["auto", *ALL])
def test_every_backend_equals_brute_force_where_queries_and_keys_of_a_graph_are_unrelated_in_number(
    backend: str,
) -> None:
    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(problem=unequal_problems())
    def check(problem: Ragged) -> None:
        _leave_garbage(problem)
        check_answer(problem, NUM_KEYS, *answer(problem, backend))

    check()


def _leave_garbage(problem: Ragged) -> None:
    """Memory that is freed here is what ``torch.empty`` of the same size gets next."""
    shape = (*problem.q.shape[:2], NUM_KEYS)
    torch.full(shape, 7)
    torch.full(shape, 0.5, dtype=torch.float64)


@pytest.mark.parametrize("backend", ["auto", *ALL])
@pytest.mark.parametrize("sizes_k", [[0, 3], [3, 0], [0, 2000]])
def test_queries_of_a_graph_without_keys_get_minus_one_and_minus_infinity(backend: str, sizes_k: list[int]) -> None:
    problem = ragged([5, 4], sizes_k, num_heads=2, seed=9)
    for _ in range(3):
        _leave_garbage(problem)
        index, score = answer(problem, backend)
        rows = slice(0, 5) if sizes_k[0] == 0 else slice(5, 9)
        assert (index[:, rows] == -1).all()
        assert (score[:, rows] == -torch.inf).all()
        check_answer(problem, NUM_KEYS, index, score)


@pytest.mark.parametrize("backend", ["auto", *ALL])
def test_a_k_far_above_every_graph_costs_no_memory_and_fills_up(backend: str) -> None:
    problem = ragged([2, 0, 3], [3, 2, 1], num_heads=1, seed=0)
    num_keys = 200_000 if backend != "keops" else NUM_KEYS  # KeOps compiles for each K
    index, score = answer(problem, backend, num_keys)
    assert index.shape == score.shape == (1, 5, num_keys)
    check_answer(problem, 3, index[..., :3], score[..., :3])
    assert (index[..., 3:] == -1).all()
    assert (score[..., 3:] == -torch.inf).all()


@pytest.mark.parametrize("backend", ["auto", *TORCH_ONLY, "tree"])
@pytest.mark.parametrize(("keys", "dim"), [(40, 3), (2000, 3), (2000, 12)])
def test_inner_products_that_overflow_say_so_with_the_sizes_and_what_helps(backend: str, keys: int, dim: int) -> None:
    q, k = torch.randn(9, dim), torch.randn(keys, dim)
    said = r"queries up to .*e\+(19|20) and keys up to .*e\+(19|20) overflow float32.*normalise"
    with pytest.raises(NotFinite, match=said):
        topk_inner_product(1e19 * q, 3e19 * k, num_keys=4, backend=backend)
    with pytest.raises(FloatingPointError, match="overflow float64"):
        topk_inner_product(1e160 * q.double(), 1e160 * k.double(), num_keys=4, backend=backend)
    with pytest.raises(ValueError, match=r"overflow float16, whose largest number is 6\.6e\+04"):
        topk_inner_product(1e3 * q.half(), 1e3 * k.half(), num_keys=4, backend=backend)


@pytest.mark.parametrize("backend", ["auto", *TORCH_ONLY, "tree"])
@pytest.mark.parametrize("keys", [40, 2000])
def test_sums_that_overflow_on_the_way_to_a_finite_score_change_nothing(backend: str, keys: int) -> None:
    q = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1e-25]]) * 1e25
    k = torch.zeros(keys, 3)
    k[:, 0], k[:, 1] = -1e20, -1e20
    k[-1] = torch.tensor([1e20, -1e20, 1.0])  # for the first query inf - inf in float32, truly 0
    k[-2] = torch.tensor([0.0, 0.0, 5.0])
    k[-3:-2, :2] = 0
    with pytest.raises(NotFinite, match="overflow float32"):
        topk_inner_product(q, k, num_keys=3, backend=backend)  # the third best of the first query is -2e45
    index, score = topk_inner_product(q[:1], k[-3:], num_keys=3, backend=backend)
    assert score.tolist() == [[0.0, 0.0, 0.0]]
    assert sorted(index[0].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("backend", TORCH_ONLY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_inputs_are_searched_in_float32_and_scored_to_their_own_rounding(
    backend: str, dtype: torch.dtype
) -> None:
    problem = ragged([5, 0, 30], [5, 2, 30], num_heads=2, seed=1)
    rounded = Ragged(problem.q.to(dtype), problem.k.to(dtype), problem.sizes_q, problem.sizes_k)
    index, score = answer(rounded, backend)
    assert score.dtype == dtype
    exact = Ragged(rounded.q.double(), rounded.k.double(), problem.sizes_q, problem.sizes_k)
    check_answer(exact, NUM_KEYS, index, score, tolerance=DIM * torch.finfo(dtype).eps)
    selected = torch.einsum("hnd,hmd->hnm", exact.q, exact.k).gather(-1, index.clamp(min=0))
    _, best = best_keys(exact.q, exact.k, *(ptr.tolist() for ptr in exact.ptrs), NUM_KEYS)
    torch.testing.assert_close(selected[index >= 0], best[index >= 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ALL)
def test_non_contiguous_inputs_give_the_same_answer(backend: str) -> None:
    problem = ragged([6, 3], [6, 3], num_heads=2, seed=2)
    q, k = (tensor.permute(2, 1, 0).contiguous().permute(2, 1, 0) for tensor in (problem.q, problem.k))
    check_answer(problem, NUM_KEYS, *topk_inner_product(q, k, *problem.ptrs, NUM_KEYS, backend))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_leading_dimensions_are_heads(shape: tuple[int, ...]) -> None:
    q, k = torch.randn(*shape, 5, DIM), torch.randn(*shape, 7, DIM)
    index, score = topk_inner_product(q, k, num_keys=2)
    expected = (q @ k.mT).topk(2)
    torch.testing.assert_close(score, expected.values)
    assert torch.equal(index, expected.indices)


@pytest.mark.parametrize(("heads", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_empty_inputs_give_empty_or_missing_answers(heads: int, queries: int, keys: int) -> None:
    index, score = topk_inner_product(torch.randn(heads, queries, DIM), torch.randn(heads, keys, DIM), num_keys=3)
    assert index.shape == score.shape == (heads, queries, 3)
    assert (index == -1).all()
    assert (score == -torch.inf).all()


@pytest.mark.parametrize("memory_mib", [0.0, 0.01, 32])
def test_chunks_of_any_size_give_the_same_answer(memory_mib: float) -> None:
    problem = ragged([20, 1, 0, 45, 19], [20, 2, 3, 40, 21], num_heads=2, seed=3)
    searched = SearchProblem.of(problem.q, problem.k, *problem.ptrs, NUM_KEYS)
    check_answer(problem, NUM_KEYS, *chunked.search_chunked(searched, memory_mib))


@pytest.mark.parametrize("integers", [False, True])
def test_group_maxima_keep_the_exact_answer(integers: bool) -> None:
    smallest = chunked.GROUP * chunked.MIN_GROUPS
    sizes = [smallest + 1, smallest]  # one with padding, one without
    problem = ragged(sizes, sizes, num_heads=1, seed=4, integers=integers)
    searched = SearchProblem.of(problem.q, problem.k, *problem.ptrs, 12)
    _, score = chunked.search_chunked(searched)
    torch.testing.assert_close(score, entries("search_backend")["exact"].component(searched)[1], rtol=1e-12, atol=1e-12)


def test_no_more_scores_are_held_than_the_memory_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    largest = chunked._largest

    def record(score: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
        held.append(score.numel() * score.element_size())
        return largest(score, num_keys)

    monkeypatch.setattr(chunked, "_largest", record)
    sizes = [700, *[20] * 64, 300]
    problem = ragged(sizes, sizes, num_heads=2, seed=5)
    chunked.search_chunked(SearchProblem.of(problem.q, problem.k, *problem.ptrs, NUM_KEYS), memory_mib=1)
    assert max(held) <= 1.02 * 2**20  # columns are padded to a multiple of GROUP
    assert max(held) > 0.8 * 2**20  # and the bound is used
