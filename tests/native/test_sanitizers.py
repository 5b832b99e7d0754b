"""All C kernels, built with AddressSanitizer and UndefinedBehaviorSanitizer, at the edges of their sizes and values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphgps_kmip.ops.native import compile_kernels as build
from graphgps_kmip.ops.native.instruction_sets import AUTO, VARIABLE, runnable
from tests.processes import python, run

ROOT = Path(__file__).parents[2]
CHECKS = "-fsanitize=address,undefined -g -O1"
FAULTS = {
    "a read past the end": "int answer(void) { int *x = malloc(4); volatile int i = 1; return x[i]; }",
    "a sum that overflows": "int answer(void) { volatile int x = 2147483647; return x + 1; }",
}


def sanitizer(name: str) -> str:
    compiler = build.compiler()
    if compiler is None:
        return ""
    path = run([compiler, f"-print-file-name={name}.so"]).stdout.strip()
    return path if os.path.isabs(path) else ""


RUNTIMES = [sanitizer(name) for name in ("libasan", "libubsan")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(RUNTIMES), reason="the compiler has no AddressSanitizer (apt install gcc)"),
]


def run_checked(command: list[str], instructions: str, tmp_path: Path) -> tuple[str, list[str]]:
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(RUNTIMES),
        "ASAN_OPTIONS": "detect_leaks=0:symbolize=0",
        "UBSAN_OPTIONS": "symbolize=0",
        "GRAPHGPS_KMIP_CACHE": str(tmp_path / "cache"),
        build.MORE_FLAGS: CHECKS,
        VARIABLE: instructions,
    }
    done = python(*command, env=environment)
    printed = done.stdout + done.stderr
    return printed, [line for line in printed.splitlines() if "runtime error:" in line or "AddressSanitizer:" in line]


@pytest.mark.parametrize("instructions", [AUTO, *runnable()])
def test_the_sanitizers_have_nothing_to_say_of_the_kernels(instructions: str, tmp_path: Path) -> None:
    cases = ["tests/native/kernel_cases.py", "tests/encoding/test_laplacian.py", "tests/data/test_edge_kernel.py"]
    cases += ["tests/attention/test_clamped.py"]
    command = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *cases]
    printed, faults = run_checked(command, instructions, tmp_path)
    assert not faults
    assert " passed" in printed, printed[-3000:]
    assert " failed" not in printed, printed[-3000:]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sanitizers_see_what_is_wrong(fault: str, tmp_path: Path) -> None:
    (tmp_path / "small.c").write_text(f"#include <stdlib.h>\n{FAULTS[fault]}\n")
    code = (
        "from pathlib import Path; from graphgps_kmip.ops.native import compile_kernels as build\n"
        f"build.SOURCES = Path({str(tmp_path)!r})\n"
        "build.load('small').answer()"
    )
    _, faults = run_checked(["-c", code], AUTO, tmp_path)
    assert any("heap-buffer-overflow" in line or "signed integer overflow" in line for line in faults)
