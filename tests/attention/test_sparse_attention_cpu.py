"""The fused C loops of sparse attention equal plain torch, in every shape and on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import sparse_attention
from graphgps_kmip.attention.sparse_attention import (
    cpu_backward,
    cpu_forward,
    implementation,
    torch_backward,
    torch_forward,
)
from graphgps_kmip.native import unavailable_reason
from tests.native.vector_units import VECTOR_UNITS

CPU, TORCH = (cpu_forward, cpu_backward), (torch_forward, torch_backward)

pytestmark = pytest.mark.skipif(unavailable_reason("sparse_attention") is not None, reason="no C compiler")


def problem(num_rows: int, num_keys: int, slots: int, dim: int, width: int, dtype: torch.dtype) -> dict[str, Tensor]:
    rows = torch.randint(num_keys, (num_rows, slots), dtype=torch.int32)
    rows[: num_rows // 2, 0] = 0  # a hub
    rows[torch.rand(num_rows, slots) < 0.2] = -1
    return {
        "q": torch.randn(num_rows, dim, dtype=dtype),
        "k": torch.randn(num_keys, dim, dtype=dtype),
        "v": torch.randn(num_keys, width, dtype=dtype),
        "rows": rows,
        "score": (3 * torch.randn(num_rows, slots, dtype=dtype)).masked_fill(rows < 0, -torch.inf),
        "keep": torch.rand(num_rows, slots) < 0.7,
        "grad_out": torch.randn(num_rows, width, dtype=dtype),
    }


def run(forms: tuple[Callable[..., Any], ...], given: dict[str, Tensor], dropout: float) -> tuple[Tensor, ...]:
    keep = given["keep"] if dropout else None
    q, k, v, rows, score = (given[name] for name in ("q", "k", "v", "rows", "score"))
    out, weight = forms[0](v, rows, score, q.size(1), keep, dropout)
    grads = forms[1](given["grad_out"], q, k, v, rows, weight, keep, dropout)
    return out, weight, *grads


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (7, 5, 3, 2, 17), (600, 90, 10, 16, 8), (5, 4, 9, 33, 3)])
def test_results_equal_those_of_plain_torch(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, dropout: float
) -> None:
    given = problem(*shape, dtype)
    for ours, theirs in zip(run(CPU, given, dropout), run(TORCH, given, dropout), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(3000, 700, 10, 10, 12, torch.float32)
    runs = []
    for count in (1, 2, 5):
        monkeypatch.setattr(sparse_attention, "_num_threads", lambda _, count=count: count)
        runs.append(run(CPU, given, 0.3))
    assert all(torch.equal(first, other) for later in runs[1:] for first, other in zip(runs[0], later, strict=True))


@pytest.mark.parametrize("num_rows", [0, 3])
def test_empty_queries_and_empty_slots_give_zeros(num_rows: int) -> None:
    given = problem(num_rows, 4, 2, 3, 5, torch.float64)
    given["rows"] = torch.full((num_rows, 2), -1, dtype=torch.int32)
    given["score"] = torch.full((num_rows, 2), -torch.inf, dtype=torch.float64)
    out, weight, *grads = run(CPU, given, 0.0)
    assert not any(tensor.any() for tensor in (out, weight, *grads))
    assert [grad.shape for grad in grads] == [given[name].shape for name in ("q", "k", "v")]


def test_scores_of_any_size_neither_overflow_nor_vanish() -> None:
    given = problem(4, 4, 3, 2, 2, torch.float32)
    given["score"] = torch.tensor([[1e30, 1e30, -1e30], [-1e30, -1e30, -1e30], [88.0, 200, 300], [0, 0, 0]])
    given["rows"] = torch.tensor([[0, 1, 2]], dtype=torch.int32).expand(4, 3)
    weight = cpu_forward(given["v"], given["rows"], given["score"], 2)[1]
    expected = torch.softmax(given["score"].double() / 2**0.5, dim=1)
    torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-37)


def test_a_cpu_takes_the_kernel_and_without_one_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(4, 4, 3, 2, 2, torch.float32)
    assert implementation(given["v"], given["rows"]) == CPU
    assert implementation(given["v"], given["rows"].long()) == TORCH  # too many keys for 32 bits
    monkeypatch.setattr(sparse_attention, "unavailable_reason", lambda *_: "no C compiler")
    assert implementation(given["v"], given["rows"]) == TORCH


def test_half_inputs_are_not_for_the_kernel() -> None:
    assert not sparse_attention.cpu_can_run(torch.ones(2, dtype=torch.bfloat16), 10)
    assert not sparse_attention.cpu_can_run(torch.ones(2), 2**31)
