"""The fused gather against the plain torch one; run by test_triton.py, in the folder search, in another process."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from graphgps_kmip.attention import BigBirdAttention, bigbird
from graphgps_kmip.ops import sparse_attention, triton_sparse_attention
from graphgps_kmip.ops.native import without_kernels
from graphgps_kmip.ops.triton_sparse_attention import sparse_attention_backward, sparse_attention_forward
from tests.search.triton_runs import DEVICE

thorough = pytest.mark.thorough  # the interpreter takes up to a second for each


def inputs(
    dim: int, channels: int, num_slots: int, dtype: torch.dtype = torch.float64, num_rows: int = 13, num_keys: int = 9
) -> list[Tensor]:
    """Tensors q, k, v and rows; key 0 is a hub, key 8 no one's; query 0 has one key, query 1 none."""
    q, k, v = (
        torch.randn(rows, width, dtype=dtype, device=DEVICE)
        for rows, width in ((num_rows, dim), (num_keys, dim), (num_keys, channels))
    )
    rows = torch.stack([torch.randperm(num_keys - 1)[:num_slots] for _ in range(num_rows)])
    rows[:, 0] = 0
    rows[0, 1:] = -1
    rows[1] = -1
    return [q, k, v, rows.int().to(DEVICE)]


def scores(q: Tensor, k: Tensor, rows: Tensor) -> Tensor:
    score = torch.einsum("rd,rkd->rk", q, k[rows.clamp(min=0)])
    return score.masked_fill(rows < 0, -torch.inf)


def plain(q: Tensor, k: Tensor, v: Tensor, rows: Tensor, keep: Tensor | None, dropout: float) -> Tensor:
    """The formula, differentiable by autograd."""
    score = scores(q, k, rows) / math.sqrt(q.size(1))
    weight = torch.softmax(score.masked_fill((rows < 0).all(1, keepdim=True), 0.0), dim=1).masked_fill(rows < 0, 0.0)
    used = weight if keep is None else weight * keep / (1 - dropout)
    return torch.einsum("rk,rkc->rc", used, v[rows.clamp(min=0)])


CASES = list(itertools.product([(3, 4, 3, 0.0), (1, 1, 1, 0.0), (5, 40, 4, 0.4)], [3, 1024]))
FEW = [((3, 4, 3, 0.0), 1024), ((5, 40, 4, 0.4), 3)]  # without and with dropout, with one part of a sum and with more


@pytest.mark.parametrize(
    ("dim", "channels", "num_slots", "dropout", "chunk"),
    [pytest.param(*sizes, chunk, marks=[] if (sizes, chunk) in FEW else [thorough]) for sizes, chunk in CASES],
)
def test_output_and_gradients_equal_those_of_the_formula(
    dim: int, channels: int, num_slots: int, dropout: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_sparse_attention, "CHUNK", chunk)  # 3: the hub's sum is cut
    q, k, v, rows = inputs(dim, channels, num_slots)
    keep = torch.rand(rows.shape, device=DEVICE) >= dropout if dropout else None
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    expected = plain(*leaves, rows, keep, dropout)
    grad_out = torch.randn_like(expected)
    out, weight = sparse_attention_forward(v, rows, scores(q, k, rows), dim, keep, dropout)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-12, atol=1e-12)
    grads = sparse_attention_backward(grad_out, q, k, v, rows, weight, keep, dropout)
    torch.testing.assert_close(grads, torch.autograd.grad(expected, leaves, grad_out), rtol=1e-12, atol=1e-12)


def test_a_query_without_any_key_gets_zero_and_no_gradient() -> None:
    q, k, v, rows = inputs(3, 4, 2)
    out, weight = sparse_attention_forward(v, rows, scores(q, k, rows), 3)
    assert out[1].eq(0).all()
    assert weight[1].eq(0).all()
    assert weight[0].tolist() == [1.0, 0.0]
    grad_q, grad_k, grad_v = sparse_attention_backward(torch.ones_like(out), q, k, v, rows, weight, None, 0.0)
    assert grad_q[1].eq(0).all()
    assert grad_k[8].eq(0).all()
    assert grad_v[8].eq(0).all()


@pytest.mark.parametrize(("num_rows", "num_keys"), [(0, 9), (3, 0)])
def test_without_queries_or_keys_everything_is_zero(num_rows: int, num_keys: int) -> None:
    q, k, v = (torch.randn(rows, 2, device=DEVICE) for rows in (num_rows, num_keys, num_keys))
    rows = torch.full((num_rows, 2), -1, device=DEVICE)
    out, weight = sparse_attention_forward(v, rows, torch.full_like(rows, -torch.inf, dtype=torch.float32), 2)
    grads = sparse_attention_backward(torch.ones_like(out), q, k, v, rows, weight, None, 0.0)
    for tensor, like in zip((out, weight, *grads), (q, rows, q, k, v), strict=True):
        assert tensor.shape == like.shape
        assert tensor.eq(0).all()


def test_float32_is_summed_to_its_own_rounding_and_repeats_bit_for_bit() -> None:
    q, k, v, rows = inputs(4, 6, 5, torch.float32)
    runs = []
    for _ in range(2):
        out, weight = sparse_attention_forward(v, rows, scores(q, k, rows), 4)
        runs.append([out, *sparse_attention_backward(torch.ones_like(out), q, k, v, rows, weight, None, 0.0)])
    expected = plain(q.double(), k.double(), v.double(), rows, None, 0.0)
    torch.testing.assert_close(runs[0][0].double(), expected, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))


def test_transposed_tensors_are_read_by_their_strides() -> None:
    q, k, v, rows = inputs(3, 4, 2)
    score = scores(q, k, rows)
    expected = sparse_attention_forward(v, rows, score, 3)
    grad_out = torch.randn_like(expected[0])
    grads = sparse_attention_backward(grad_out, q, k, v, rows, expected[1], None, 0.0)
    turned = [x.t().contiguous().t() for x in (v, rows, score, grad_out, q, k, expected[1])]
    assert not turned[0].is_contiguous()
    torch.testing.assert_close(sparse_attention_forward(*turned[:3], 3), expected, rtol=0, atol=0)
    others = sparse_attention_backward(*turned[3:6], *turned[:2], turned[6], None, 0.0)
    torch.testing.assert_close(others, grads, rtol=0, atol=0)


def test_bigbird_attends_by_these_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for module in (bigbird, sparse_attention):
        monkeypatch.setattr(module, "cpu_can_run", lambda *_: False)
    for name in ("sparse_attention_forward", "sparse_attention_backward"):
        kernel = getattr(triton_sparse_attention, name)
        monkeypatch.setattr(triton_sparse_attention, name, lambda *args, k=kernel: calls.append(k) or k(*args))
    attention = BigBirdAttention(4, 2, num_random_blocks=1).double().to(DEVICE)
    x = torch.randn(19, 4, device=DEVICE, dtype=torch.float64, requires_grad=True)
    batch = torch.tensor([0] * 16 + [1] * 3, device=DEVICE)

    def run() -> tuple[Tensor, ...]:
        out = attention(x, batch)
        return out, *torch.autograd.grad((out * x.detach()).sum(), (x, *attention.parameters()))

    fused = run()
    assert len(calls) == 2
    with without_kernels():
        expected = run()
    assert len(calls) == 2
    torch.testing.assert_close(fused, expected, rtol=1e-9, atol=1e-11)
