"""Kernels that are compiled at their first use: the cache, its key, who may write there, and how it cannot work."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphgps_kmip.ops.native import NoKernel
from graphgps_kmip.ops.native import compile_kernels as build
from graphgps_kmip.ops.native.compile_kernels import cache_folder
from graphgps_kmip.search import topk_inner_product
from tests.processes import preloaded

GOOD = "int answer(void) { return NUMBER; }\n"
compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")
owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system knows no owners of files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sources and a cache that was not made yet; what was found out about the machine is forgotten."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "small.c").write_text(GOOD)
    monkeypatch.setattr(build, "SOURCES", tmp_path / "sources")
    monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(tmp_path / "above" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(build.tempfile, "tempdir", None)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    build.forget()
    build._process_folder.cache_clear()
    build._warn_once.cache_clear()


@pytest.fixture
def cache(folder: Path) -> Path:
    return folder / "above" / "cache"


def libraries(folder: Path) -> list[Path]:
    return sorted((folder / "above" / "cache").glob("*.so"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


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
    assert {path.suffix for path in (folder / "above" / "cache").iterdir()} <= {".lock"}


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


@owners
@compiler
def test_folders_are_made_for_this_user_alone_whatever_the_umask(cache: Path) -> None:
    before = os.umask(0)
    try:
        assert build.load("small", "-DNUMBER=4").answer() == 4
    finally:
        os.umask(before)
    assert mode(cache) == mode(cache.parent) == 0o700
    (library,) = cache.glob("*.so")
    assert mode(library) == 0o700


@owners
@compiler
@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777 | stat.S_ISVTX])
def test_a_folder_that_others_may_write_is_refused_with_what_helps(
    cache: Path, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache_folder()
    cache.chmod(bits)
    assert build.load("small", "-DNUMBER=4").answer() == 4  # from a folder of the process
    assert not list(cache.glob("*.so"))
    assert f"{cache} may be written by other users" in caplog.text
    assert f"chmod go-w {cache}" in caplog.text


@owners
def test_a_folder_of_another_user_is_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache_folder()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache_folder() != cache
    assert "belongs to another user" in caplog.text
    assert "set GRAPHGPS_KMIP_CACHE to a folder of your own" in caplog.text


@owners
@compiler
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("fault", ["written by others", "a link", "a pipe"])
def test_a_library_that_others_could_have_made_is_not_loaded_but_compiled_anew(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = build._cached_library("small", ("-DNUMBER=4",))  # not loaded: the loader knows a library by its name
    library.unlink()
    evil = tmp_path / "evil.so"
    build._compile([build.compiler(), *build.FLAGS, "-DNUMBER=666"], tmp_path / "sources" / "small.c", evil)
    assert ctypes.CDLL(str(evil)).answer() == 666
    if fault == "a link":
        library.symlink_to(evil)
    elif fault == "a pipe":
        os.mkfifo(library, 0o700)
    else:
        library.write_bytes(evil.read_bytes())
        library.chmod(0o722)
    assert build.load("small", "-DNUMBER=4").answer() == 4
    assert mode(library) == 0o700
    assert not library.is_symlink()
    assert "compiled anew" in caplog.text


def test_a_process_has_one_folder_to_fall_back_on_and_removes_it_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code = (
        "from graphgps_kmip.ops.native.compile_kernels import cache_folder; import os\n"
        "first, second = cache_folder(), cache_folder()\n"
        "assert first == second\n"
        "if os.fork() == 0: raise SystemExit\n"
        "os.wait()\n"
        "assert first.is_dir()\n"
        "print(first)"
    )
    environment = {**os.environ, "GRAPHGPS_KMIP_CACHE": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path)}
    done = preloaded("-c", code, env=environment)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path
    assert not folder.exists()
    assert done.stderr.count("cannot be written") == 1


def test_a_user_without_a_home_folder_gets_one_for_the_process(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("GRAPHGPS_KMIP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", staticmethod(homeless))
    assert cache_folder().parent == cache.parents[1]
    assert "there is no home folder" in caplog.text
