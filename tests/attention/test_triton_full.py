"""Triton kernels of full attention: in a process of their own, compiled for absent GPUs, and, with one, by size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from run.bench.gpu_code import compile_for

from graphgps_kmip.attention import GraphContext, triton_full_attention
from graphgps_kmip.attention.full import full_attention
from tests.reference.attention import full_attention as by_the_formula
from tests.search.triton_runs import INTERPRETING, needs_triton, run_cases, three_ways


@needs_triton
@three_ways
def test_the_kernels_pass_their_cases_in_a_process_of_their_own(interpret: bool, marks: str) -> None:
    run_cases(Path(__file__).with_name("triton_full_cases.py"), interpret, marks)


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
@pytest.mark.parametrize(
    ("capability", "dtype", "pairs"),
    [
        (90, "fp32", True),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in [(80, "bf16", False), (80, "fp32", True), (100, "fp16", True), (90, "fp64", True)]
        ),
    ],
)
def test_the_kernels_compile_to_tensor_cores_without_spills_or_atomic_sums(
    capability: int, dtype: str, pairs: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.attention import triton_full_attention_kernels as kernels

    kind = {"fp32": torch.float32, "fp64": torch.float64}.get(dtype, torch.float16)
    constants = {
        "SCALE": 0.25, "DROPPED": 2**31, "KEPT_PART": 0.5, "H": 4, "D": 16, "WIDTH": 16, "PRECISION": "ieee",
        "TILE": triton_full_attention._largest_tile(torch.empty(0, dtype=kind), 16, pairs),
        **dict.fromkeys(("HAS_KEY_BIAS", "HAS_THETA", "HAS_PHI", "GRAD_KEY_BIAS", "GRAD_THETA", "GRAD_PHI"), pairs),
    }  # fmt: skip
    constants["PRECISION"] = triton_full_attention._precision(kind)
    for kernel in (kernels.forward_kernel, kernels.backward_keys_kernel, kernels.backward_queries_kernel):
        code = compile_for(capability, kernel, constants, dtype, num_warps=4, num_stages=2)
        assert code.spilled <= 32
        assert "mma" in code.ptx
        assert not re.search(r"\s(atom|red)\.", code.ptx)  # an atomic sum would not repeat bit for bit


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_on_a_gpu_it_equals_the_formula_and_repeats_bit_for_bit(dtype: torch.dtype, tolerance: float) -> None:
    bounds = [0, 300, 307, 307, 1000, 1128]
    ptr = torch.tensor(bounds, device="cuda")
    context = GraphContext(torch.repeat_interleave(ptr.diff()), ptr)
    qkv = torch.randn(1128, 3 * 4 * 16, device="cuda", dtype=dtype, requires_grad=True)
    assert triton_full_attention.can_run(qkv, 4)
    grad, runs = torch.randn(1128, 64, device="cuda", dtype=dtype), []
    for _ in range(2):
        out = full_attention(qkv, context, 4)
        runs.append([out, *torch.autograd.grad(out, qkv, grad)])
    exact = qkv.detach().double().requires_grad_()
    out = by_the_formula(*exact.unflatten(1, (3, 4, -1)).unbind(1), bounds).flatten(1)
    wanted = [out, *torch.autograd.grad(out, exact, grad.double())]
    for one, other in zip(runs[0], wanted, strict=True):
        largest = float(other.detach().abs().max())
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * largest)
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
