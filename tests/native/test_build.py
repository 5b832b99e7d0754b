"""Kernels that are compiled at their first use: the cache, its key, and every way in which it cannot work."""

from __future__ import annotations

import logging
import shutil
import stat
from pathlib import Path

import pytest
import torch

from graphgps_kmip.ops.native import NoKernel
from graphgps_kmip.ops.native import compile_kernels as build
from graphgps_kmip.search import topk_inner_product

GOOD = "int answer(void) { return NUMBER; }\n"
compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources and a cache of their own; what was found out about the machine is forgotten."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "small.c").write_text(GOOD)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(tmp_path / "cache"))
    build.forget()
    yield tmp_path
    build.forget()


def libraries(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*.so"))


@compiler
def test_a_source_is_compiled_once_and_then_taken_from_the_cache(folder: Path) -> None:
    assert build.load("small", "-DNUMBER=42").answer() == 42
    (library,) = libraries(folder)
    changed = library.stat().st_mtime_ns
    build.load.cache_clear()
    assert build.load("small", "-DNUMBER=42").answer() == 42
    assert libraries(folder) == [library]
    assert library.stat().st_mtime_ns == changed


@compiler
@pytest.mark.parametrize("change", ["source", "header", "flags", "cpu", "compiler"])
def test_another_source_header_flag_cpu_or_compiler_is_another_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    build.load("small", "-DNUMBER=1")
    build.load.cache_clear()
    flags = ["-DNUMBER=1"]
    if change == "source":
        (folder / "sources" / "small.c").write_text(GOOD + "int more;\n")
    elif change == "header":
        (folder / "sources" / "some.h").write_text("int more;\n")
    elif change == "flags":
        flags = ["-DNUMBER=2"]
    elif change == "cpu":
        monkeypatch.setattr(build, "_cpu", lambda: "another")
    else:
        monkeypatch.setattr(build, "_version", lambda command: f"{command} 99")
    build.load("small", *flags)
    assert len(libraries(folder)) == 2


def test_without_a_compiler_the_reason_names_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(NoKernel, match=r"no C compiler \(cc, gcc or clang is not on the PATH\): install one"):
        build.load("small")
    monkeypatch.setenv("CC", "no-such-cc -O2")
    with pytest.raises(NoKernel, match="no-such-cc -O2 is not on the PATH"):
        build.load("small")


@compiler
def test_a_source_that_does_not_compile_leaves_nothing_behind(folder: Path) -> None:
    (folder / "sources" / "small.c").write_text("int answer(void) { return }\n")
    with pytest.raises(NoKernel, match=r"cannot compile small\.c: .*error"):
        build.load("small")
    assert {path.suffix for path in (folder / "cache").iterdir()} <= {".lock"}


@compiler
def test_a_cpu_that_the_compiler_does_not_know_is_compiled_for_in_general_and_this_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picky = folder / "picky"
    picky.write_text(f'#!/bin/sh\ncase "$*" in *march=native*) exit 1;; esac\nexec {shutil.which("cc")} "$@"\n')
    picky.chmod(picky.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(picky))
    assert build.load("small", "-DNUMBER=7").answer() == 7
    assert "cannot compile small.c for this CPU (exit code 1): it is compiled for any, which is slower" in caplog.text


@compiler
@pytest.mark.parametrize("failing", ["no folder at all may be written", "no locks"])
def test_where_nothing_can_be_stored_there_is_no_kernel_and_a_reason(
    failing: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    if failing == "no locks":
        monkeypatch.setattr("graphgps_kmip.common.file_lock.FileLock.acquire", refused)
    else:
        (folder / "file").write_text("")
        monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(folder / "file" / "cache"))
        monkeypatch.setattr("tempfile.mkdtemp", refused)
        build._process_folder.cache_clear()
    reason = build.unavailable_reason("small", "-DNUMBER=7")
    assert "Read-only file system" in reason
    assert "GRAPHGPS_KMIP_CACHE" in reason


@compiler
@pytest.mark.usefixtures("folder")
def test_a_damaged_library_is_made_anew() -> None:
    library = build._cached_library("small", ("-DNUMBER=5",))
    library.write_bytes(b"not a library")
    assert build.load("small", "-DNUMBER=5").answer() == 5


def test_without_a_kernel_auto_takes_chunked_and_says_so_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CC", raising=False)
    x = torch.randn(9, 3)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            score = topk_inner_product(x, x, num_keys=2)[1]
    torch.testing.assert_close(score, (x @ x.T).topk(2).values)
    assert len(caplog.messages) == 1
    assert "a slower route is used instead: no C compiler" in caplog.text
    with pytest.raises(ValueError, match="'cpu' cannot solve this problem: no C compiler"):
        topk_inner_product(x, x, num_keys=2, backend="cpu")
