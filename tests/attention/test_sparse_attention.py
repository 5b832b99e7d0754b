"""Attention to selected keys: equal to a plain gather, lean, and the same in fused C loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from graphgps_kmip.ops import sparse_attention as operator
from graphgps_kmip.ops.native import unavailable_reason
from graphgps_kmip.ops.sparse_attention import (
    cpu_backward,
    cpu_forward,
    implementation,
    sparse_attention,
    torch_backward,
    torch_forward,
)
from graphgps_kmip.search import topk_inner_product
from tests.attention.largest import largest_tensor
from tests.native.vector_units import VECTOR_UNITS

PTR = torch.tensor([0, 5, 5, 6, 13])


def inputs(num_nodes: int = 13, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(num_nodes, 2, width, dtype=dtype, requires_grad=True) for width in (3, 3, 4)]


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, num_keys: int = 4) -> Tensor:
    ptr = PTR if len(q) == 13 else torch.tensor([0, len(q)])
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), ptr, ptr, num_keys)
    return sparse_attention(q, k, v, index, score, dropout)


def test_gradients_equal_finite_differences_with_the_same_weights_dropped() -> None:
    def seeded(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend(*tensors, 0.4, num_keys=3)

    assert torch.autograd.gradcheck(seeded, inputs(4), fast_mode=True)


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    q, k, _ = inputs()
    ones = torch.ones(13, 2, 4, dtype=torch.float64)
    sums = torch.stack([attend(q, k, ones, dropout=0.25)[..., 0] for _ in range(100)])
    assert (sums > 1.2).any()
    # the mean of 100 draws of variance <= 1/3 is off by 0.06; all 26 stay within five times that
    torch.testing.assert_close(sums.mean(0), torch.ones_like(sums[0]), rtol=0, atol=0.3)


def test_a_query_without_any_key_gets_zero_and_no_gradient() -> None:
    q, k, v = inputs(3)
    index = torch.full((2, 3, 2), -1)
    index[:, 1:, 0] = 1
    score = torch.full((2, 3, 2), -torch.inf, dtype=torch.float64).masked_fill(index >= 0, 0.5)
    out = sparse_attention(q, k, v, index, score)
    torch.testing.assert_close(out, torch.stack([torch.zeros_like(v[0]), v[1], v[1]]))
    grad_q, grad_k, grad_v = torch.autograd.grad(out.sum(), (q, k, v))
    assert grad_q.eq(0).all()
    assert grad_k.eq(0).all()
    assert grad_v[:, 0, 0].tolist() == [0, 2, 0]


def test_halves_are_computed_in_float32_and_come_back_as_halves() -> None:
    wide = [tensor.detach().bfloat16().requires_grad_() for tensor in inputs()]
    index, score = topk_inner_product(wide[0].float().transpose(0, 1), wide[1].float().transpose(0, 1), PTR, PTR, 4)
    out = sparse_attention(*wide, index, score)
    assert out.dtype == torch.bfloat16
    expected = sparse_attention(*[tensor.float() for tensor in wide], index, score)
    assert torch.equal(out, expected.bfloat16())
    assert all(grad.dtype == torch.bfloat16 for grad in torch.autograd.grad(out.sum(), wide))


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_nothing_larger_than_index_or_values_is_ever_made(dropout: float) -> None:
    num_nodes, num_heads, num_keys, width = 60, 2, 8, 16
    q, k, v = (torch.randn(num_nodes, num_heads, width, requires_grad=True) for _ in range(3))
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), num_keys=num_keys)
    largest = largest_tensor(lambda: sparse_attention(q, k, v, index, score, dropout))
    assert largest <= num_nodes * num_heads * max(num_keys, width)


needs_c = pytest.mark.skipif(unavailable_reason("sparse_attention") is not None, reason="no C compiler")


CPU, TORCH = (cpu_forward, cpu_backward), (torch_forward, torch_backward)


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


def run(forms: tuple[Callable[..., Any], ...], tensors: dict[str, Tensor], dropout: float) -> tuple[Tensor, ...]:
    keep = tensors["keep"] if dropout else None
    q, k, v, rows, score = (tensors[name] for name in ("q", "k", "v", "rows", "score"))
    out, weight = forms[0](v, rows, score, q.size(1), keep, dropout)
    return out, weight, *forms[1](tensors["grad_out"], q, k, v, rows, weight, keep, dropout)


@needs_c
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", VECTOR_UNITS, indirect=True)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (7, 5, 3, 2, 17), (600, 90, 10, 16, 8), (5, 4, 9, 33, 3)])
def test_results_equal_those_of_plain_torch(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float, dropout: float
) -> None:
    tensors = problem(*shape, dtype)
    results = run(CPU, tensors, dropout), run(TORCH, tensors, dropout)
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


@needs_c
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = problem(3000, 700, 10, 10, 12, torch.float32)
    runs = []
    for count in (1, 2, 5):
        monkeypatch.setattr(operator, "_num_threads", lambda _, count=count: count)
        runs.append(run(CPU, tensors, 0.3))
    assert all(torch.equal(first, other) for later in runs[1:] for first, other in zip(runs[0], later, strict=True))


@needs_c
def test_scores_of_any_size_neither_overflow_nor_vanish() -> None:
    tensors = problem(4, 4, 3, 2, 2, torch.float32)
    tensors["score"] = torch.tensor([[1e30, 1e30, -1e30], [-1e30, -1e30, -1e30], [88.0, 200, 300], [0, 0, 0]])
    tensors["rows"] = torch.tensor([[0, 1, 2]], dtype=torch.int32).expand(4, 3)
    weight = cpu_forward(tensors["v"], tensors["rows"], tensors["score"], 2)[1]
    expected = torch.softmax(tensors["score"].double() / 2**0.5, dim=1)
    torch.testing.assert_close(weight.double(), expected, rtol=1e-6, atol=1e-37)


@needs_c
def test_a_cpu_takes_the_kernel_and_without_one_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = problem(4, 4, 3, 2, 2, torch.float32)
    assert implementation(tensors["v"], tensors["rows"]) == CPU
    assert implementation(tensors["v"], tensors["rows"].long()) == TORCH  # too many keys for 32 bits
    monkeypatch.setattr(operator, "unavailable_reason", lambda *_: "no C compiler")
    assert implementation(tensors["v"], tensors["rows"]) == TORCH
