"""The instruction set that kernels are compiled for: chosen by a variable, refused where the CPU does not have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.native import compile_kernels, instruction_sets

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
