"""The parts of the benchmark: baselines are right, data is what it says, skipped cells and printed numbers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from run.bench import attention, baselines, bench_records, search_methods
from run.bench.attention_inputs import DATA, Inputs, make_inputs, shape_of
from run.bench.harness import Bounds, skip_reason

from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.experiments.manifest import load_manifest
from graphgps_kmip.registry import entries
from graphgps_kmip.search import SearchProblem
from graphgps_kmip.testing.references import best_keys
from tests.search.problems import Ragged, check_answer, ragged

FAISS = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss-cpu is not installed")
EXACT = [
    pytest.param(baselines.matmul_topk, id="matmul"),
    pytest.param(partial(search_methods.faiss, kind="flat"), id="faiss", marks=FAISS),
]


def problem_of(data: Ragged, num_keys: int) -> SearchProblem:
    return SearchProblem.of(data.q.float(), data.k.float(), *data.ptrs, num_keys)


@pytest.mark.parametrize("sizes", [[30], [12, 12, 12], [9, 0, 20, 1]])
@pytest.mark.parametrize("baseline", EXACT)
def test_every_baseline_equals_brute_force(baseline: Callable[..., tuple], sizes: list[int]) -> None:
    data = ragged(sizes, sizes, num_heads=2, seed=3)
    check_answer(data, 4, *baseline(problem_of(data, 4)), tolerance=1e-5)


@FAISS
@pytest.mark.parametrize("kind", ["ivf", "pq", "lsh", "hnsw"])
@pytest.mark.parametrize("sizes", [[30], [300, 2]])
def test_approximate_indexes_name_keys_of_the_query_s_graph(kind: str, sizes: list[int]) -> None:
    data = ragged(sizes, sizes, num_heads=2, seed=3)
    index, score = search_methods.faiss(problem_of(data, 4), kind)
    assert index.shape == score.shape
    assert ((index >= 0) & (index < sum(sizes))).all()


def test_every_approximate_index_that_the_papers_name_is_measured_or_said_to_be_left_out() -> None:
    measured = search_methods.names("search", "cpu", approximate=True)
    assert {"faiss ivf", "faiss pq", "faiss lsh"} <= set(measured)
    experiments = load_manifest(Path(__file__).parents[2] / "run" / "experiments")
    for key in ("T-4.2x", "K-E"):
        assert "Annoy and TorchPQ are left out" in " ".join(experiments[key].notes)


@pytest.mark.compiler
def test_keops_as_installed_equals_brute_force() -> None:  # once: it compiles for seconds for every kind of batch
    data = ragged([9, 0, 20, 1], [9, 0, 20, 1], num_heads=2, seed=3)
    check_answer(data, 4, *search_methods.keops(problem_of(data, 4)), tolerance=1e-5)


def test_the_plain_gather_equals_the_package_s_attention() -> None:
    data = ragged([5, 2], [5, 2], num_heads=2, seed=0)
    q, k = (tensor.transpose(0, 1) for tensor in (data.q, data.k))
    v = torch.randn_like(q)
    index, score = baselines.matmul_topk(SearchProblem.of(data.q, data.k, *data.ptrs, 3))
    expected = sparse_attention(q, k, v, index, score)
    torch.testing.assert_close(baselines.gather_attention(q, k, v, index), expected)


@pytest.mark.parametrize("data", ["gaussian", "batch:3x20x2"])
def test_full_attention_is_the_same_eager_and_fused(data: str) -> None:
    inputs = make_inputs(data, 60, 4, shape_of(data)[1] or 1)
    leaves = [tensor.transpose(0, 1) for tensor in (inputs.q, inputs.k, inputs.v)]
    rows = search_methods.attentions("cpu")
    outputs = [rows[name].forward(inputs, *leaves) for name in ("full eager", "sdpa cpu float32")]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_recall_is_one_for_exact_search_and_counts_what_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs("gaussian", 50, 4, 2)
    assert attention.recall("matmul+topk", inputs, 5) == 1.0
    index, score = baselines.matmul_topk(inputs.problem(5))
    index[..., 0] = index[..., 1]  # the best one is never found
    monkeypatch.setattr(search_methods.baselines, "matmul_topk", lambda _: (index, score))
    assert attention.recall("matmul+topk", inputs, 5) == pytest.approx(0.8)


def test_a_batch_has_graphs_of_one_size_or_of_sizes_between_two_in_random_order() -> None:
    assert make_inputs("batch:3x20x2", 60, 4, 2).ptr.diff().tolist() == [20, 20, 20]
    sizes = make_inputs("batch:5x9-17x2", 65, 4, 2).ptr.diff().tolist()
    assert sorted(sizes) == [9, 11, 13, 15, 17]
    assert sizes != sorted(sizes)
    assert shape_of("batch:5x9-17x2") == (65, 2)


@pytest.mark.parametrize("data", DATA)
def test_data_sets_repeat_and_are_finite(data: str) -> None:
    first, second = (make_inputs(data, 300, 4, 2) for _ in range(2))
    torch.testing.assert_close(first.k, second.k, rtol=0, atol=0)
    assert first.q.shape == first.v.shape == (2, 300, 4)
    assert first.q.isfinite().all()


def test_falling_keys_have_falling_norms_and_rising_scores() -> None:
    inputs = make_inputs("descending", 500, 8, 1)
    assert (inputs.k.norm(dim=-1).diff() < 0).all()
    assert ((inputs.q @ inputs.k.mT).diff(dim=-1) > 0).all()


def test_every_backend_of_the_package_takes_part() -> None:
    for name in (*entries("search_backend"), "auto"):
        assert search_methods.OURS + name in search_methods.names("search", "cpu")
        assert search_methods.KMIP + search_methods.OURS + name in search_methods.names("training", "cpu")


def test_sizes_are_half_powers_of_ten() -> None:
    assert bench_records.sizes("1e2:1e4") == [100, 316, 1000, 3162, 10000]
    assert bench_records.sizes("100:200") == [100, 200]
    assert bench_records.sizes("50,7") == [7, 50]


def test_a_cell_that_would_take_too_long_or_failed_before_is_skipped() -> None:
    row = {"method": "a", "data": "gaussian", "n": 100, "status": "ok", "total_ms": 1000.0}
    cell, bounds = row | {"n": 1000}, Bounds(repeats=5, limit=120)
    assert skip_reason(cell, [row], bounds) == "skipped (estimated 400 s)"  # 100 s a pass: three and the first one
    assert skip_reason(row | {"n": 200}, [row], bounds) is None
    half = row | {"n": 50, "total_ms": 500.0}  # linear growth: 10 s a pass
    assert skip_reason(cell, [half, row], bounds) is None
    full = row | {"status": "out of memory"}
    assert skip_reason(cell, [full], bounds) == "skipped (out of memory at n = 100)"


def test_brute_force_and_recall_agree_on_a_ragged_batch() -> None:
    data = ragged([8, 3], [8, 3], num_heads=1, seed=1)
    inputs = Inputs(data.q.float(), data.k.float(), data.q.float(), data.ptrs[0])
    assert attention.recall("matmul+topk", inputs, 4) == 1.0
    _, best = best_keys(data.q, data.k, *(ptr.tolist() for ptr in data.ptrs), 4)
    assert baselines.matmul_topk(inputs.problem(4))[1].isneginf().equal(best.isneginf())
