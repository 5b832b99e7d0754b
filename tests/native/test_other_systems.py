"""Kernels on macOS and with clang: the words for the compiler, what the CPU is asked for, no OpenMP, no complaint."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest
import torch

from graphgps_kmip.attention import GraphContext
from graphgps_kmip.attention.full import full_attention
from graphgps_kmip.ops.native import compile_kernels, instruction_sets
from graphgps_kmip.search import topk_inner_product
from tests.native import emulated_cpu
from tests.processes import run

KERNELS = sorted(compile_kernels.SOURCES.glob("*.c"))
APPLE_CLANG = """#!/bin/sh
echo "$@" >> {folder}/words
case "$*" in
  *--version*) echo "Apple clang"; exit;;
  *openmp*|*march=native*) echo "error: not for Apple" >&2; exit 1;;
esac
exec {cc} $(echo "$@" | sed s/-mcpu=native//)
"""
needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="no clang (apt install clang)")


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def apple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the process take this machine for a Mac with an Arm CPU, whose programs are in the folder."""
    read = Path.read_text

    def without_proc(path: Path, *args: object, **options: object) -> str:
        if path.parts[:2] == ("/", "proc"):
            raise FileNotFoundError(path)
        return read(path, *args, **options)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Path, "read_text", without_proc)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(instruction_sets, "_cpu_flags", instruction_sets._cpu_flags.__wrapped__)
    monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(tmp_path / "cache"))
    compile_kernels.forget()
    yield tmp_path
    compile_kernels.forget()


@pytest.mark.skipif(compile_kernels.compiler() is None, reason="no C compiler")
def test_clang_of_a_mac_is_told_its_cpu_in_its_own_words_and_nothing_of_openmp(
    apple: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program(apple / "cc", APPLE_CLANG.format(folder=apple, cc=shutil.which("gcc") or shutil.which("clang")))
    monkeypatch.delenv("CC", raising=False)
    x = torch.randn(9, 3)
    score = topk_inner_product(x, x, num_keys=2, backend="cpu")[1]
    torch.testing.assert_close(score, (x @ x.T).topk(2).values)
    assert "-mcpu=native" in (apple / "words").read_text()
    assert not caplog.messages


@needs_clang
@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("instruction_set", [instruction_sets.AUTO], indirect=True)
def test_kernels_by_clang_compute_what_plain_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "clang")
    assert Path(compile_kernels.compiler()).name == "clang"
    q, k = torch.randn(1, 300, 10), torch.randn(1, 2000, 10)
    score = topk_inner_product(q, k, num_keys=5, backend="cpu")[1]
    torch.testing.assert_close(score, (q @ k.mT).topk(5).values)
    qkv, context = torch.randn(70, 3 * 8), GraphContext(torch.zeros(70, dtype=torch.int64), torch.tensor([0, 70]))
    out = full_attention(qkv, context, 1)
    with compile_kernels.without_kernels():
        torch.testing.assert_close(out, full_attention(qkv, context, 1))


@needs_clang
@pytest.mark.parametrize("target", ["", "--target=aarch64-linux-gnu"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda path: path.stem)
def test_clang_complains_about_no_kernel(kernel: Path, target: str) -> None:
    if target and not emulated_cpu.SYSTEM.exists():
        pytest.skip(f"no {emulated_cpu.SYSTEM} (apt install libc6-dev-arm64-cross)")
    sets = ("dotprod", "i8mm") if target else ("portable", "avx2", "avx512vnni")
    for flags in (instruction_sets.INSTRUCTION_SETS[name].flags for name in sets):
        argv = ["clang", *compile_kernels.FLAGS, *flags, "-Wall", "-Werror", "-fsyntax-only", *target.split()]
        done = run([word for word in argv if word not in ("-shared", "-pthread")] + [str(kernel)])
        assert done.returncode == 0, done.stderr
