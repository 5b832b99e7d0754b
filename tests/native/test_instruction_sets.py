"""Instruction sets of the kernels: chosen by a variable, refused where the CPU lacks them, run under emulation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.native import compile_kernels, instruction_sets
from graphgps_kmip.search import SearchProblem, fused_cpu
from tests.native import emulated_cpu
from tests.native.emulated_cpu import CPUS, emulated
from tests.native.vector_units import EMULATED

MACROS = {"avx2": "__AVX2__", "avx512": "__AVX512BW__", "avxvnni": "__AVXVNNI__", "avx512vnni": "__AVX512VNNI__"}
MACROS |= {"neon": "__ARM_NEON", "dotprod": "__ARM_FEATURE_DOTPROD", "i8mm": "__ARM_FEATURE_MATMUL_INT8"}
EXPECTED = {
    "portable": set(),
    "avx2": {"avx2"},
    "avxvnni": {"avx2", "avxvnni"},
    "avx512": {"avx2", "avx512"},
    "avx512vnni": {"avx2", "avx512", "avx512vnni"},
    "neon": {"neon"},
    "dotprod": {"neon", "dotprod"},
    "i8mm": {"neon", "dotprod", "i8mm"},
}


@pytest.mark.skipif(compile_kernels.compiler() is None, reason="no C compiler")
def test_a_kernel_has_the_instructions_of_the_chosen_set_and_no_others(
    instruction_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"#ifdef {macro}\n| {1 << i}\n#endif" for i, macro in enumerate(MACROS.values())]
    (tmp_path / "has.c").write_text("\n".join(["int has(void) { return 0", *lines, ";}", ""]))
    monkeypatch.setattr(compile_kernels, "SOURCES", tmp_path)
    monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(tmp_path))
    bits = compile_kernels.load("has").has()
    has = {name for i, name in enumerate(MACROS) if bits >> i & 1}
    if instruction_set == instruction_sets.AUTO:
        assert all(has >= EXPECTED[name] for name in instruction_sets.runnable())
    else:
        assert has == EXPECTED[instruction_set]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("avx3", "", r"^GRAPHGPS_KMIP_ISA=avx3: no instruction set of the kernels, allowed are auto(, portable)?$"),
        ("avxvnni", instruction_sets.AVX2, r"^GRAPHGPS_KMIP_ISA=avxvnni: this CPU does not have it, allowed are auto"),
    ],
)
def test_what_the_cpu_cannot_run_is_refused_in_one_line(
    name: str, flags: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "_cpu_flags", lambda: frozenset(flags.split()))
    monkeypatch.setenv(instruction_sets.VARIABLE, name)
    with pytest.raises(InputError, match=message):
        compile_kernels.unavailable_reason("kmip_search", "-DNEVER_BEFORE")


REASON = emulated_cpu.missing() or ("" if "i8mm" in EMULATED else "this CPU is one of those that are emulated")
emulates = pytest.mark.skipif(bool(REASON), reason=REASON)


@emulates
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


@emulates
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
