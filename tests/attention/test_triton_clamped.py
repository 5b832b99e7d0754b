"""Triton kernels of clamped attention: in a process of their own, compiled for absent GPUs, and, with one, by size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from run.bench.gpu_code import compile_for

from graphgps_kmip.attention import triton_clamped_attention
from graphgps_kmip.attention.clamped_attention import clamped_attention
from graphgps_kmip.native import without_kernels
from tests.search.triton_runs import INTERPRETING, needs_triton, run_cases, three_ways


@needs_triton
@three_ways
def test_the_kernels_pass_their_cases_in_a_process_of_their_own(interpret: bool, marks: str) -> None:
    run_cases(Path(__file__).with_name("triton_clamped_cases.py"), interpret, marks)


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(
    ("capability", "dtype"),
    [(90, "fp32"), *(pytest.param(*one, marks=pytest.mark.thorough) for one in [(80, "fp32"), (100, "fp64")])],
)
def test_the_kernels_compile_without_spills_or_atomic_sums(
    capability: int, dtype: str, finish: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.attention import triton_clamped_attention_kernels as kernels

    constants = {"LIMIT": 5.0, "EPS": 1e-6, "SCALE": 0.25, "KEPT_PART": 0.9, "H": 4, "D": 16, "ED": 16}
    constants |= {"CHUNK": 512, "ENTRIES": 8, "WIDTH": 16, "HAS_BIAS": True, "HAS_KEEP": True, "FINISH": finish}
    constants |= {"HAS_SECOND": True, "HAS_TOTAL": True}
    for kernel in (kernels.forward_kernel, kernels.backward_kernel, kernels.product_sum_kernel):
        code = compile_for(capability, kernel, constants, dtype, num_warps=1)
        assert not code.spilled
        assert "atom." not in code.ptx  # an atomic sum would not repeat bit for bit
        assert "red.global" not in code.ptx
        assert not re.search(r"\s(min|max)\.f", code.ptx)  # they would turn a NaN into the limit of the scores


@pytest.mark.cuda
@needs_triton
def test_on_a_gpu_it_equals_plain_torch_and_repeats_bit_for_bit() -> None:
    edges = torch.stack([torch.randint(size, (100_000,), device="cuda") for size in (9000, 8000, 40)])
    edges[1, ::5] = 7
    shapes = (8000, 4, 16), (9000, 4, 16), (9000, 4, 16), (40, 4, 16)
    given = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    assert triton_clamped_attention.can_run(given[0])
    runs = []
    for _ in range(2):
        out = clamped_attention(*given, edges)
        runs.append([out, *torch.autograd.grad(out.square().sum(), given)])
    exact = [one.detach().double().requires_grad_() for one in given]
    with without_kernels():
        out = clamped_attention(*exact, edges)
    wanted = [out, *torch.autograd.grad(out.square().sum(), exact)]
    for one, other in zip(runs[0], wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-4 * float(other.detach().abs().max()))
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
