"""GatedGCN's Triton kernels: in a process of their own, compiled for absent GPUs, and, with one, on realistic sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run.bench.gpu_code import compile_for

from graphgps_kmip.mpnn import triton_gated_mean
from graphgps_kmip.mpnn.gated_mean import gated_mean, plain_gates_and_means
from tests.search.triton_runs import INTERPRETING, needs_triton, run_cases, three_ways


@needs_triton
@three_ways
def test_the_kernels_pass_their_cases_in_a_process_of_their_own(interpret: bool, marks: str) -> None:
    run_cases(Path(__file__).with_name("triton_gated_mean_cases.py"), interpret, marks)


@needs_triton
@pytest.mark.skipif(INTERPRETING, reason="an interpreted kernel cannot be compiled")
@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        (90, "fp32"),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in [(80, "bf16"), (100, "fp16"), (90, "fp64")]),
    ],
)
def test_the_kernels_compile_without_spills_or_atomic_sums(
    capability: int, dtype: str, finish: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from graphgps_kmip.mpnn import triton_gated_mean_kernels as kernels

    constants = {"CHUNK": 512, "ENTRIES": 8, "WIDTH": 64, "C": 64, "EPS": 1e-6, "FINISH": finish}
    constants |= {"HAS_FACTOR": True, "HAS_GRAD_GATE": True}
    for kernel in (kernels.forward_kernel, kernels.backward_targets_kernel, kernels.backward_sources_kernel):
        code = compile_for(capability, kernel, constants, dtype, num_warps=1)
        assert not code.spilled
        assert "atom." not in code.ptx  # an atomic sum would not repeat bit for bit
        assert "red.global" not in code.ptx


@pytest.mark.cuda
@needs_triton
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_on_a_gpu_it_equals_plain_torch_and_repeats_bit_for_bit(dtype: torch.dtype, tolerance: float) -> None:
    source, target = torch.randint(10_000, (2, 80_000), device="cuda")
    target[::5] = 7
    shapes = (10_000, 128), (10_000, 128), (80_000, 64)
    given = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
    assert triton_gated_mean.can_run(*given)
    grads = torch.randn(10_000, 64, device="cuda"), torch.randn(80_000, 64, device="cuda")
    runs = []
    for _ in range(2):
        found = gated_mean(*given, None, source, target)
        runs.append([*found, *torch.autograd.grad(found, given, [one.to(dtype) for one in grads])])
    exact = [one.detach().double().requires_grad_() for one in given]
    expected = plain_gates_and_means(*exact, None, source, target)
    wanted = [*expected, *torch.autograd.grad(expected, exact, [one.double() for one in grads])]
    for one, other in zip(runs[0], wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * other.abs().max().item())
    assert all(torch.equal(first, second) for first, second in zip(*runs, strict=True))
