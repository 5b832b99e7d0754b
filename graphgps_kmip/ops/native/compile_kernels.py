"""Compile the C kernels of this directory at first use, cache the libraries per compiler and CPU, and load them.

Without a compiler the callers go on in plain torch and say so once. A library runs with the rights of the user: folder
and file must belong to this user and not be writable by others.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from filelock import Timeout
from torch import Tensor

from graphgps_kmip.common.file_lock import held
from graphgps_kmip.ops.native.instruction_sets import ARM, AUTO, INSTRUCTION_SETS, machine, read_instruction_set

logger = logging.getLogger(__name__)

_switched_off: list[bool] = []  # one entry for each open block of `without_kernels`


class Untrusted(Exception):
    """A folder or library that somebody else owns or may write; the message says which, whose, and what helps."""


def cache_folder() -> Path:
    """Return ``$GRAPHGPS_KMIP_CACHE``, else ``graphgps_kmip`` in the user's cache folder, else a temporary folder."""
    name, base = os.environ.get("GRAPHGPS_KMIP_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(name or Path(base or Path.home() / ".cache") / "graphgps_kmip").absolute()
    except RuntimeError as error:  # a user without an entry, as in some containers
        return _temporary_folder(f"there is no home folder ({error}) and GRAPHGPS_KMIP_CACHE is not set")
    try:
        # for this user only: Path.mkdir gives its mode to the last folder only
        for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        _check_owner(folder, folder.stat(), stat.S_ISDIR)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        return _temporary_folder(f"{folder} cannot be written ({error})")
    except Untrusted as error:
        return _temporary_folder(str(error))


def load_trusted(library: Path) -> ctypes.CDLL:
    """Load a library; an `Untrusted` or OSError if that is not safe, or it is missing or damaged."""
    _check_owner(library.parent, library.parent.stat(), stat.S_ISDIR)
    _check_owner(library, library.lstat(), stat.S_ISREG)
    return ctypes.CDLL(str(library))


def _check_owner(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not hasattr(os, "geteuid"):  # Windows knows no owners
        return
    if not is_kind(status.st_mode):
        raise Untrusted(f"{path} is neither a folder nor a plain file")
    if status.st_uid != os.geteuid():
        raise Untrusted(
            f"{path} belongs to another user (uid {status.st_uid}), who could put code there that runs as you: "
            "set GRAPHGPS_KMIP_CACHE to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Untrusted(
            f"{path} may be written by other users (mode {stat.S_IMODE(status.st_mode):o}), who could put code there "
            f"that runs as you: remove what is in it and chmod go-w {path}, or set GRAPHGPS_KMIP_CACHE"
        )


def _temporary_folder(reason: str) -> Path:
    folder = _process_folder(os.getpid())
    _warn_once(reason, folder)
    return folder


@functools.cache
def _process_folder(process: int) -> Path:
    # mkdtemp and not a fixed name: a folder that others could have made must not be trusted
    folder = Path(tempfile.mkdtemp(prefix="graphgps_kmip-"))

    def remove() -> None:
        if os.getpid() == process:  # not in a fork, whose parent goes on
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@functools.cache
def _warn_once(reason: str, folder: Path) -> None:
    logger.warning("%s: compiled kernels are stored in %s, for this process only", reason, folder)


SOURCES = Path(__file__).parent
CPU_LINES = ("model name", "flags", "Features", "CPU implementer", "CPU part")  # of /proc/cpuinfo, on x86-64 and Arm
# Loops over K slots and D channels are short: -O3 unrolls them. No -ffast-math: infinities mark missing slots.
FLAGS = tuple("-O3 -std=gnu11 -shared -fPIC -fno-math-errno -fno-trapping-math -ffp-contract=fast -pthread".split())
MORE_FLAGS = "GRAPHGPS_KMIP_CFLAGS"  # environment variable, such as "-fsanitize=address,undefined -g -O1"
LOCK_SECONDS = 120  # another process compiles for 2 s; waiting longer means that it hangs


class NoKernel(RuntimeError):
    """A kernel cannot be compiled or loaded on this machine; the message says why and what would help."""


@functools.cache
def load(name: str, *flags: str) -> ctypes.CDLL:
    """Compile ``<name>.c`` of this folder, unless the cache has it, and load it.

    Args:
        name: the file, without ``.c``, or an absolute path.
        *flags: of the compiler, such as "-DDOUBLE", before those of ``GRAPHGPS_KMIP_CFLAGS`` and the instruction set.

    Raises:
        NoKernel: no compiler, or it failed, or what it made cannot be loaded.
        InputError: ``GRAPHGPS_KMIP_ISA`` names no instruction set of this CPU.
    """
    flags += tuple(shlex.split(os.environ.get(MORE_FLAGS, "")))
    if (instruction_set := read_instruction_set()) != AUTO:
        flags += INSTRUCTION_SETS[instruction_set].flags
    library = _cached_library(name, flags)
    try:
        return load_trusted(library)
    except Untrusted as error:
        logger.warning("%s: it is compiled anew", error)
    except OSError:
        pass  # damaged: a second compilation repairs that
    with contextlib.suppress(OSError):
        library.unlink(missing_ok=True)
    try:
        return load_trusted(_cached_library(name, flags))
    except (OSError, Untrusted) as error:  # such as a file system that allows no execution
        raise NoKernel(f"the compiled kernel cannot be loaded: {error}; set GRAPHGPS_KMIP_CACHE") from error


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Let every caller compute in plain torch inside the block, as a reference for its kernels; in one thread only."""
    _switched_off.append(True)
    try:
        yield
    finally:
        _switched_off.pop()


def unavailable_reason(name: str, *flags: str) -> str | None:
    """Say why ``load(name, *flags)`` fails on this machine (logged once), or None when it works."""
    return "switched off" if switched_off() else _failure(name, *flags)


def switched_off() -> bool:
    """Whether this is inside `without_kernels`; kernels of Triton ask for it, too."""
    return bool(_switched_off)


# as torch.compiler.assume_constant_result, which takes seconds to import
unavailable_reason._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _failure(name: str, *flags: str) -> str | None:
    try:
        load(name, *flags)
    except NoKernel as error:
        logger.warning("no compiled CPU kernel %r, a slower route is used instead: %s", name, error)
        return str(error)
    return None


def forget() -> None:
    """Let the next use of a kernel find out about compiler, flags and CPU anew."""
    load.cache_clear()
    _failure.cache_clear()


def dtype_flags(dtype: torch.dtype) -> tuple[str, ...]:
    """Return the flags by which a kernel of this package is compiled for float64, none for float32."""
    return ("-DDOUBLE",) if dtype == torch.float64 else ()


def pointer(tensor: Tensor | None, *, rows: bool = False) -> ctypes.c_void_p:
    """Address of a contiguous CPU tensor, or with ``rows`` of a matrix with contiguous rows; NULL for None."""
    if tensor is None:
        return ctypes.c_void_p(None)
    dense = tensor.is_contiguous() or (rows and tensor.dim() == 2 and tensor.stride(1) == 1)
    if not dense or tensor.device.type != "cpu":
        raise ValueError(f"a C kernel needs a contiguous CPU tensor, got stride {tensor.stride()} on {tensor.device}")
    try:
        return ctypes.c_void_p(tensor.data_ptr())
    except RuntimeError as error:  # a tensor inside torch.func.grad, jvp or vmap has no memory of its own
        raise RuntimeError(
            "a C kernel cannot read the tensors of torch.func (grad, jvp, vmap): take derivatives by "
            f"torch.autograd, and batch graphs by a batch vector ({error})"
        ) from error


def compiler() -> str | None:
    """Name the C compiler: ``CC`` where it is set, else the first of cc, gcc, clang; None when there is none."""
    names = os.environ.get("CC", "").split()[:1] or ["cc", "gcc", "clang"]
    return next(filter(None, map(shutil.which, names)), None)


def _cached_library(name: str, flags: tuple[str, ...]) -> Path:
    command = compiler()
    if command is None:
        raise NoKernel(
            f"no C compiler ({os.environ.get('CC') or 'cc, gcc or clang'} is not on the PATH): install one "
            "(Debian, Ubuntu: apt install gcc; macOS: xcode-select --install; conda: conda install gcc_linux-64), "
            "or set CC"
        )
    sources = [path.read_text() for path in (SOURCES / f"{name}.c", *sorted(SOURCES.glob("*.h")))]
    parts = [*sources, command, _version(command), *FLAGS, *flags, _cpu()]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    try:
        library = cache_folder() / f"{Path(name).name}-{key[:20]}{'.dll' if sys.platform == 'win32' else '.so'}"
        with held(Path(f"{library}.lock"), LOCK_SECONDS):
            if not library.exists():
                _compile([command, *FLAGS, *flags], SOURCES / f"{name}.c", library)
    except Timeout as error:
        raise NoKernel(f"another process holds {library}.lock: end it, or remove that file") from error
    except OSError as error:  # no folder at all may be written, the disk is full, the file system has no locks
        raise NoKernel(
            f"it cannot be stored: {error}; set GRAPHGPS_KMIP_CACHE to a folder that can be written"
        ) from error
    return library


def _compile(command: list[str], source: Path, library: Path) -> None:
    forced = any(flag.startswith("-march=") for flag in command)
    for native in ([],) if forced else ([native_flag()], []):  # second try: compilers that do not know this CPU
        unfinished = library.with_name(f"{library.name}.{os.getpid()}.part")
        done = _run([*command, *native, str(source), "-o", str(unfinished), "-lm"])
        if done.returncode == 0:
            unfinished.chmod(0o700)  # whatever the umask
            unfinished.replace(library)
            return
        if native:
            logger.warning(
                "%s cannot compile %s for this CPU (%s): it is compiled for any, which is slower",
                *(command[0], source.name, _first_error(done)),
            )
    unfinished.unlink(missing_ok=True)
    raise NoKernel(f"{command[0]} cannot compile {source.name}: {_first_error(done)}")


def native_flag() -> str:
    """Return the compiler's flag for all that this CPU has; clang knows only ``-mcpu`` on Arm."""
    return "-mcpu=native" if machine() == ARM else "-march=native"


def _first_error(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    return next((line for line in lines if "error" in line), lines[-1])


def _version(command: str) -> str:
    return _run([command, "--version"]).stdout


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoKernel(f"{argv[0]} cannot be started: {error}") from error


def _cpu() -> str:
    """CPU model and flags, on which `native_flag` depends: several machines may share a home directory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor() + platform.node()
    return "\n".join(sorted({line for line in lines if line.startswith(CPU_LINES)}))
