"""Kernels of another CPU under emulation: what is called, with which instructions, and on which threads."""

from __future__ import annotations

import pytest
import torch

from graphgps_kmip.search import SearchProblem, fused_cpu
from tests.native import emulated_cpu
from tests.native.emulated_cpu import CPUS, emulated
from tests.native.vector_units import EMULATED

REASON = emulated_cpu.missing() or ("" if "i8mm" in EMULATED else "this CPU is one of those that are emulated")
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_search_on_several_threads_without_openmp_finds_the_best(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = torch.randn(2, 300, 11, dtype=dtype), torch.randn(2, 1200, 11, dtype=dtype)
    monkeypatch.setattr(fused_cpu, "num_threads", lambda _: 3)
    with emulated("i8mm"):
        index, score, counts = fused_cpu.scan(SearchProblem.of(q, k, None, None, 7), screen=True)
        assert fused_cpu.instruction_set(dtype) == "i8mm"
    products = q.double() @ k.double().mT
    torch.testing.assert_close(score.double(), products.topk(7).values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(products.gather(-1, index), products.topk(7).values, rtol=1e-5, atol=1e-5)
    assert counts.screened > 0.9 * 2 * 300 * 1200


def test_instructions_that_the_emulated_cpu_does_not_have_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CPUS, "i8mm", CPUS["neon"])
    x = torch.randn(1, 2000, 10)
    with emulated("i8mm"), pytest.raises(RuntimeError, match="kmip_search ended with -?[0-9]+ under emulation"):
        fused_cpu.scan(SearchProblem.of(x[:, :40], x, None, None, 5), screen=True)


def test_without_compiler_or_emulator_the_reason_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    reason = "no aarch64-linux-gnu-gcc and no qemu-aarch64 (apt install gcc-aarch64-linux-gnu qemu-user)"
    assert emulated_cpu.missing() == reason
    with pytest.raises(RuntimeError, match="no qemu-aarch64"), emulated("neon"):
        pass
