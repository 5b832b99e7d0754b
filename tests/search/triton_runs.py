"""How Triton kernels are tried without a GPU: run by Triton's interpreter, and compiled for an absent card."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import python

ROOT = Path(__file__).parents[2]
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
# A process either interprets or compiles, from the first import of triton on.
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETING else "cpu"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed (pip install triton)"
)


# In the interpreter, the cases without the mark thorough by default; on a GPU all.
three_ways = pytest.mark.parametrize(
    ("interpret", "marks"),
    [
        (True, "not thorough"),
        pytest.param(True, "thorough", marks=pytest.mark.thorough),
        pytest.param(False, "not slow", marks=pytest.mark.cuda),
    ],
)


def run_cases(file: Path, interpret: bool, marks: str) -> None:
    """Run the tests of a file in a process of its own, in Triton's interpreter on the CPU or compiled on the GPU."""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(interpret))}
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, str(file), env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert not interpret or "skipped" not in done.stdout


def compile_for_hopper(kernel: Any, pointers: dict[str, str], constants: dict[str, Any], warps: int = 4) -> str:
    """Compile a kernel down to machine code of compute capability 9.0 (H100, H200) and return the assembly.

    Args:
        kernel: a function under ``triton.jit``.
        pointers: argument -> element type, such as "fp32".
        constants: values of the ``tl.constexpr`` arguments; all others are int32 or, named error, float32.
        warps: of a program.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    names = kernel.arg_names
    types = dict.fromkeys(constants, "constexpr") | {name: f"*{kind}" for name, kind in pointers.items()}
    signature = {name: types.get(name, "fp32" if "error" in name else "i32") for name in names}
    aligned = {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in pointers}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    assert compiled.asm["cubin"]
    return compiled.asm["ptx"]
