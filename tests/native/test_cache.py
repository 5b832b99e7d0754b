"""Which folders and libraries compiled code is loaded from: those that nobody else could have written."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphgps_kmip.ops.native import compile_kernels as build
from graphgps_kmip.ops.native.compile_kernels import cache_folder
from tests.processes import preloaded

compiler = pytest.mark.skipif(build.compiler() is None, reason="no C compiler")
pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system knows no owners of files")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache that was not made yet, and a source to compile."""
    (tmp_path / "small.c").write_text("int answer(void) { return NUMBER; }\n")
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setenv("GRAPHGPS_KMIP_CACHE", str(tmp_path / "above" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(build.tempfile, "tempdir", None)
    forget()
    yield tmp_path / "above" / "cache"
    forget()


def forget() -> None:
    for cached in (build.load, build._failure, build._process_folder, build._warn_once):
        cached.cache_clear()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@compiler
def test_folders_are_made_for_this_user_alone_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        assert build.load("small", "-DNUMBER=4").answer() == 4
    finally:
        os.umask(before)
    assert mode(folder) == mode(folder.parent) == 0o700
    (library,) = folder.glob("*.so")
    assert mode(library) == 0o700


@compiler
@pytest.mark.parametrize("bits", [0o770, 0o707, 0o777 | stat.S_ISVTX])
def test_a_folder_that_others_may_write_is_refused_with_what_helps(
    folder: Path, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache_folder()
    folder.chmod(bits)
    assert build.load("small", "-DNUMBER=4").answer() == 4  # from a folder of the process
    assert not list(folder.glob("*.so"))
    assert f"{folder} may be written by other users" in caplog.text
    assert f"chmod go-w {folder}" in caplog.text


def test_a_folder_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache_folder()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache_folder() != folder
    assert "belongs to another user" in caplog.text
    assert "set GRAPHGPS_KMIP_CACHE to a folder of your own" in caplog.text


@compiler
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("fault", ["written by others", "a link", "a pipe"])
def test_a_library_that_others_could_have_made_is_not_loaded_but_compiled_anew(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    library = build._cached_library("small", ("-DNUMBER=4",))  # not loaded: the loader knows a library by its name
    library.unlink()
    evil = tmp_path / "evil.so"
    build._compile([build.compiler(), *build.FLAGS, "-DNUMBER=666"], tmp_path / "small.c", evil)
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
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("GRAPHGPS_KMIP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build.Path, "home", staticmethod(homeless))
    assert cache_folder().parent == folder.parents[1]
    assert "there is no home folder" in caplog.text
