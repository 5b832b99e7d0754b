"""How Triton kernels are tried without a GPU: in a process of their own, by Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

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


def check_sees_a_wrong_gradient(kernels: ModuleType, backward: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check of a family of kernels passes, but not where its backward function exchanges rows."""
    kernels._check(torch.device(DEVICE))
    right = getattr(kernels, backward)
    monkeypatch.setattr(kernels, backward, lambda *given: [one.roll(1, 0) for one in right(*given)])
    with pytest.raises(AssertionError):
        kernels._check(torch.device(DEVICE))
