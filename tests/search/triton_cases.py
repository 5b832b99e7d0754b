"""The fused search against float64 brute force; run by test_triton.py in another process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.search import SearchProblem, triton_search
from graphgps_kmip.search import triton_search_kernels as triton_kernels
from graphgps_kmip.search.triton_search import Tiling, search_triton
from tests.search.problems import Ragged, check_answer, ragged
from tests.search.triton_runs import DEVICE, INTERPRETING

thorough = pytest.mark.thorough  # the interpreter takes up to a second for each
SMALL = Tiling(queries=16, keys=16, step=1, warps=1)
RAGGED = [9, 0, 5, 1, 4, 20], [9, 3, 40, 2, 0, 20]  # no queries, no keys, graphs smaller than K, one of three blocks


def search_one_graph(q: Tensor, k: Tensor, num_keys: int, tiling: Tiling | None = SMALL) -> tuple[Tensor, Tensor]:
    problem = SearchProblem.of(q.to(DEVICE), k.to(DEVICE), None, None, num_keys)
    index, score = search_triton(problem, tiling)
    return index.cpu(), score.cpu()


def check(q: Tensor, k: Tensor, num_keys: int, tiling: Tiling | None = SMALL) -> Tensor:
    """Compare with brute force, with the tolerance of the contract relative to |q| max|k|; return the index."""
    index, score = search_one_graph(q, k, num_keys, tiling)
    exact = Ragged(q.double(), k.double(), [q.size(1)], [k.size(1)])
    bound = exact.q.norm(dim=-1).amax() * exact.k.norm(dim=-1).amax()
    check_answer(exact, num_keys, index, score, 4 * q.size(-1) * torch.finfo(q.dtype).eps * max(1.0, bound.item()))
    return index


@pytest.mark.parametrize(
    ("integers", "dtype"),
    [pytest.param(False, torch.float32, marks=thorough), (True, torch.float32), (False, torch.float64)],
)
def test_it_equals_brute_force_on_ragged_graphs(integers: bool, dtype: torch.dtype) -> None:
    problem = ragged(*RAGGED, num_heads=2, seed=1, integers=integers)
    rounded = Ragged(problem.q.to(dtype).double(), problem.k.to(dtype).double(), *RAGGED)
    ptrs = [ptr.to(DEVICE) for ptr in problem.ptrs]
    searched = SearchProblem.of(rounded.q.to(DEVICE, dtype), rounded.k.to(DEVICE, dtype), *ptrs, 4)
    index, score = search_triton(searched, SMALL)
    check_answer(rounded, 4, index.cpu(), score.cpu(), tolerance=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize(
    ("num_keys", "dim"), [pytest.param(1, 1, marks=thorough), (5, 17), pytest.param(40, 10, marks=thorough)]
)
def test_sizes_that_are_no_powers_of_two_are_padded_without_a_trace(num_keys: int, dim: int) -> None:
    check(torch.randn(1, 3, dim), torch.randn(1, 37, dim), num_keys)


@thorough
def test_scores_are_the_same_bit_for_bit_whatever_the_tiling() -> None:
    q, k = torch.randn(1, 18, 5), torch.randn(1, 70, 5)
    first = search_one_graph(q, k, 4)
    for tiling in (Tiling(32, 64, 1, 1), Tiling(16, 16, 3, 1)):
        for expected, scores in zip(first, search_one_graph(q, k, 4, tiling), strict=True):
            assert torch.equal(scores, expected)


def blocks_of(*scores: float) -> tuple[Tensor, Tensor]:
    """One query, and for each score a block of 16 keys that are visited in this order: first one with this score.

    The others of a block have score 0, except in the first block, where all have the same.
    """
    k = torch.zeros(1, 16 * len(scores), 2)
    for block, score in enumerate(scores):
        k[:, 16 * block, 0] = score
        k[:, 16 * block : 16 * block + 16, 1] = 3 - block / 2  # orders the blocks by norm
    k[:, :16, 0] = scores[0]
    return torch.tensor([[[1.0, 0.0]]]), k


STEP = 2**-10  # from 1 to the next number of half precision


def test_keys_that_low_precision_cannot_tell_apart_are_told_apart() -> None:
    # both round to 1: without a margin the second would not be seen
    q, k = blocks_of(1 + 0.4 * STEP, 1 + 0.45 * STEP)
    assert check(q, k, 1).item() == 16


def test_a_candidate_is_kept_for_its_exact_score_and_not_for_its_low_one() -> None:
    # the last two both round up to 1 + STEP: by its low score the first of them could not be passed by the other
    q, k = blocks_of(0.5, 1 + 0.6 * STEP, 1 + 0.7 * STEP)
    assert check(q, k, 1).item() == 32


def test_equal_scores_come_by_rising_index() -> None:
    k = torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0])[None, :, None]
    index, _ = search_one_graph(torch.ones(1, 1, 1), k, 4)
    assert index.flatten().tolist() == [1, 2, 4, 3]


@pytest.mark.parametrize(
    ("scale_q", "scale_k"),
    [
        (1e-20, 1e-17),
        (1e15, 1e18),
        *(pytest.param(*two, marks=thorough) for two in ((1.0, 1e-17), (1e15, 1e-17), (1e-20, 1e18), (1.0, 1e18))),
    ],
)
def test_sizes_far_beyond_half_precision_neither_overflow_nor_vanish(scale_q: float, scale_k: float) -> None:
    q, k = torch.randn(1, 8, 4), torch.randn(1, 40, 4)
    scale = torch.logspace(-3, 3, 8)[None, :, None]
    index, score = search_one_graph(q * scale * scale_q, k * scale_k, 3)
    expected = (q.double() @ k.double().mT).topk(3)
    assert torch.equal(index, expected.indices)
    torch.testing.assert_close(score.double() / scale / scale_q / scale_k, expected.values, rtol=1e-5, atol=1e-5)


def count_calls(monkeypatch: pytest.MonkeyPatch, *names: str) -> Counter[str]:
    calls: Counter[str] = Counter()

    def count(name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return function(*args, **kwargs)

    for name in names:
        monkeypatch.setattr(triton_kernels, name, partial(count, name, getattr(triton_kernels, name)))
    return calls


interpreted = pytest.mark.skipif(not INTERPRETING, reason="counts calls inside the interpreter")


@interpreted
def test_a_large_search_takes_the_fastest_tiling_which_is_measured_once_for_a_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(triton_search, "WORTH", 400)
    monkeypatch.setattr(triton_search, "TILINGS", (SMALL, SMALL._replace(queries=32), SMALL._replace(keys=32)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    triton_search.tuned_kernel.cache_clear()
    kernel, milliseconds = triton_search.tuned_kernel(), []

    def measure(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        milliseconds.append([3.0, 1.0, 2.0][len(milliseconds) % 3])
        return milliseconds[-1:] * len(quantiles)

    monkeypatch.setattr(kernel, "_do_bench", measure)
    check(torch.randn(1, 20, 3), torch.randn(1, 20, 3), 3, tiling=None)
    assert kernel.best_config.kwargs == {"QUERIES": 32, "KEYS": 16, "STEP": 1}
    check(torch.randn(1, 21, 3), torch.randn(1, 21, 3), 3, tiling=None)
    assert len(milliseconds) == 3
    check(torch.randn(1, 21, 3), torch.randn(1, 21, 3), 5, tiling=None)
    assert len(milliseconds) == 6
    check(torch.randn(1, 19, 3), torch.randn(1, 19, 3), 3, tiling=None)  # too small to be measured
    assert len(milliseconds) == 6
    triton_search.tuned_kernel.cache_clear()


@interpreted
def test_a_tile_ends_when_no_key_left_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, "_screen")
    k = torch.nn.functional.normalize(torch.randn(1, 160, 3), dim=-1) * torch.logspace(2, -2, 160)[:, None]
    shuffled = k[:, torch.randperm(160)]
    check(torch.randn(1, 8, 3), shuffled, 2)
    assert 1 <= calls["_screen"] <= 4  # of ten blocks


@interpreted
def test_blocks_without_a_candidate_are_only_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, "_screen", "_visit", "_insert")
    k = torch.nn.functional.normalize(torch.randn(1, 160, 3), dim=-1)
    k[..., 0] = -k[..., 0].abs()
    k[0, 70:72] = torch.tensor([[0.5, 1.4, 0], [0.6, 1.4, 0]])  # the longest, so in the first block
    assert check(torch.tensor([[[1.0, 0, 0]]]), k, 2).flatten().tolist() == [71, 70]
    assert calls == {"_screen": 10, "_visit": 1, "_insert": 1}
    calls.clear()
    check(torch.tensor([[[1.0, 0, 0]]]), k, 2, tiling=SMALL._replace(step=5))  # of a group's five blocks one has some
    assert calls == {"_screen": 2, "_visit": 5, "_insert": 1}


@interpreted
# Decisions of a block: a candidate in its group? in itself? too many? any to insert? does it go on? And K = 4 rounds of
# insertion in the first.
@pytest.mark.parametrize(
    ("queries", "keys", "decisions"),
    [
        (torch.randn(1, 8, 3), torch.randn(1, 1, 3), 10 * 5 + 4),
        pytest.param(torch.zeros(1, 8, 3), torch.randn(1, 160, 3), 5 + 4, marks=thorough),
        pytest.param(torch.randn(1, 8, 3), torch.zeros(1, 1, 3), 5 + 4, marks=thorough),
    ],
)
def test_equal_scores_cost_no_rounds_of_insertion_after_the_first_k(
    queries: Tensor, keys: Tensor, decisions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, "_any")
    check(queries, keys.expand(1, 160, 3), 4)
    assert calls["_any"] == decisions
