"""The autograd function of k-MIP attention: equal to a plain gather, lean, repeatable."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphgps_kmip.attention.sparse_attention import sparse_attention
from graphgps_kmip.search import topk_inner_product
from graphgps_kmip.testing.references import kmip_attention

PTR = torch.tensor([0, 5, 5, 6, 13])


def inputs(num_nodes: int = 13, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(num_nodes, 2, width, dtype=dtype, requires_grad=True) for width in (3, 3, 4)]


def attend(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, num_keys: int = 4) -> Tensor:
    ptr = PTR if len(q) == 13 else torch.tensor([0, len(q)])
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), ptr, ptr, num_keys)
    return sparse_attention(q, k, v, index, score, dropout)


def test_output_and_gradients_equal_those_of_a_plain_gather() -> None:
    ours, theirs = inputs(), []
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    cotangent = torch.randn(13, 2, 4, dtype=torch.float64)
    out, expected = attend(*ours), kmip_attention(*theirs, PTR.tolist(), 4)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(out, ours, cotangent)
    torch.testing.assert_close(found, torch.autograd.grad(expected, theirs, cotangent), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_equal_finite_differences_with_and_without_dropout(dropout: float) -> None:
    def seeded(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return attend(*tensors, dropout, num_keys=3)

    assert torch.autograd.gradcheck(seeded, inputs(4))


def test_dropout_drops_weights_and_keeps_their_mean() -> None:
    q, k, _ = inputs()
    ones = torch.ones(13, 2, 4, dtype=torch.float64)
    sums = torch.stack([attend(q, k, ones, dropout=0.25)[..., 0] for _ in range(100)])
    assert (sums > 1.2).any()
    # the mean of 100 draws of variance <= 1/3 is off by 0.06; all 26 stay within five times that
    torch.testing.assert_close(sums.mean(0), torch.ones_like(sums[0]), rtol=0, atol=0.3)


def test_forward_and_backward_repeat_bit_for_bit() -> None:
    tensors = inputs(300, torch.float32)
    runs = []
    for _ in range(3):
        out = attend(*tensors)
        runs.append([out, *torch.autograd.grad(out.square().sum(), tensors)])
    assert all(torch.equal(first, other) for run in runs[1:] for first, other in zip(runs[0], run, strict=True))


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


class LargestTensor(TorchDispatchMode):
    """Remember the number of elements of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_nothing_larger_than_index_or_values_is_ever_made(dropout: float) -> None:
    num_nodes, num_heads, num_keys, width = 60, 2, 8, 16
    q, k, v = (torch.randn(num_nodes, num_heads, width, requires_grad=True) for _ in range(3))
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), num_keys=num_keys)
    with LargestTensor() as largest:
        sparse_attention(q, k, v, index, score, dropout).sum().backward()
    assert largest.numel == num_nodes * num_heads * max(num_keys, width)


def test_index_and_weight_are_all_that_is_kept_for_the_backward() -> None:
    q, k, v = (torch.randn(60, 2, 16, requires_grad=True) for _ in range(3))
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), num_keys=8)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        sparse_attention(q, k, v, index, score)
    inside = [tensor for tensor in kept if tensor.data_ptr() not in {q.data_ptr(), k.data_ptr(), v.data_ptr()}]
    assert {(tuple(tensor.shape), tensor.dtype) for tensor in inside} == {
        ((120, 8), torch.float32),
        ((120, 8), torch.int32),
    }
