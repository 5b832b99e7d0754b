"""The fused gather: its kernels are compiled for a GPU and, with one, tried on realistic sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphgps_kmip.ops.sparse_attention import sparse_attention
from graphgps_kmip.ops.triton_sparse_attention import can_run, sparse_attention_backward, sparse_attention_forward
from graphgps_kmip.search import topk_inner_product
from tests.search.triton_runs import INTERPRETING, assembly_for, needs_triton


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("fp64", marks=pytest.mark.thorough)])
def test_the_kernels_compile_for_hopper(dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.ops import triton_sparse_attention_kernels as kernels

    constants = {"C": 16, "D": 10, "ROWS": 16, "SLOTS": 16, "WIDTH": 16, "HAS_KEEP": True, "ENTRIES": 32}
    constants |= {"WEIGHTED": True, "TEMPERATURE": 10**0.5, "KEPT_PART": 0.9}
    for kernel in (kernels.forward_kernel, kernels.backward_kernel, kernels.segment_kernel):
        ptx = assembly_for(90, kernel, constants, dtype)
        assert f"fma.rn.f{dtype[2:]}" in ptx
        assert "atom." not in ptx  # an atomic sum would not repeat bit for bit
        assert "red.global" not in ptx


@needs_triton
def test_the_kernels_take_single_and_double_precision_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert not can_run(torch.ones(1))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert can_run(torch.ones(1))
    assert can_run(torch.ones(1).double())
    assert not can_run(torch.ones(1).bfloat16())


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize("channels", [16, 100])
def test_on_a_gpu_it_equals_plain_torch_and_repeats_bit_for_bit(channels: int) -> None:
    q, k, v = (torch.randn(20_000, 1, width, device="cuda", requires_grad=True) for width in (10, 10, channels))
    index, score = topk_inner_product(q.transpose(0, 1), k.transpose(0, 1), num_keys=10, backend="chunked")
    expected = sparse_attention(q.double(), k.double(), v.double(), index, score.double())
    grad_out = torch.randn(20_000, channels, device="cuda")
    expected_grads = torch.autograd.grad(expected, (q, k, v), grad_out[:, None].double())
    flat = [tensor.detach().flatten(0, 1) for tensor in (q, k, v)]
    runs = []
    for _ in range(2):
        out, weight = sparse_attention_forward(flat[2], index[0], score[0], 10)
        runs.append([out, *sparse_attention_backward(grad_out, *flat, index[0], weight, None, 0.0)])
    torch.testing.assert_close(runs[0][0].double(), expected.detach().flatten(0, 1), rtol=1e-4, atol=1e-5)
    for grad, expected_grad in zip(runs[0][1:], (grad.flatten(0, 1) for grad in expected_grads), strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-3, atol=1e-4 * expected_grad.abs().max().item())
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
