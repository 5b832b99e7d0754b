"""Where compiled kernels are stored, and which libraries may be loaded: those that nobody else could have written.

A library that is loaded runs with the rights of the user. So folder and file must belong to this user, and neither may
be writable by group or others. The folder is opened before it is checked, and the library is loaded through what was
opened: a path that somebody exchanges in between leads nowhere else.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

OPEN_FILES = Path("/proc/self/fd")  # of Linux; elsewhere a library is loaded by its path
_descriptors: dict[Path, int] = {}  # of folders that were checked


class Untrusted(Exception):
    """A folder or library that somebody else owns or may write; the message says which, whose, and what helps."""


def cache_folder() -> Path:
    """Return ``$GRAPHGPS_KMIP_CACHE``, else ``graphgps_kmip`` in the user's cache folder, made where it is not there.

    Where it cannot be written or trusted: a temporary folder, one for the process, which is removed at its end.
    """
    try:
        own = _chosen_folder()
    except RuntimeError as error:  # a user without an entry, as in some containers
        return _temporary(f"there is no home folder ({error}) and GRAPHGPS_KMIP_CACHE is not set")
    try:
        _make(own)
        _checked(own)
        with tempfile.TemporaryFile(dir=own):
            return own
    except OSError as error:
        return _temporary(f"{own} cannot be written ({error})")
    except Untrusted as error:
        return _temporary(str(error))


def _chosen_folder() -> Path:
    if chosen := os.environ.get("GRAPHGPS_KMIP_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "graphgps_kmip"


def load_trusted(library: Path) -> ctypes.CDLL:
    """Load a library.

    Raises:
        Untrusted: its folder or itself belongs to somebody else, may be written by others, or is no regular file.
        OSError: it is not there, or damaged.
    """
    folder = _checked(library.parent)
    if folder is None:
        return ctypes.CDLL(str(library))
    file = os.open(library.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        _check(library, os.fstat(file), stat.S_ISREG)
    finally:
        os.close(file)
    opened = OPEN_FILES / str(folder) / library.name  # nobody else can exchange a file in a folder of ours
    return ctypes.CDLL(str(opened if opened.exists() else library))


def _checked(folder: Path) -> int | None:
    """Return an open descriptor of a folder of ours; None where the system knows no owners (Windows).

    It stays open: the loader takes two libraries of one name, number of the descriptor included, for the same.
    """
    if not hasattr(os, "geteuid"):
        return None
    descriptor = _descriptors.get(folder)
    if descriptor is None or not _is_open(descriptor, folder):
        descriptor = _descriptors[folder] = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _check(folder, os.fstat(descriptor), stat.S_ISDIR)
    return descriptor


def _is_open(descriptor: int, folder: Path) -> bool:
    """Whether a descriptor is still that of the folder: it may have been closed, the folder made anew."""
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except OSError:
        return False


def _check(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
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


def _make(folder: Path) -> None:
    """Make a folder, and those above it, for this user only: ``Path.mkdir`` gives its mode to the last one only."""
    for missing in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def _temporary(reason: str) -> Path:
    folder = _process_folder(os.getpid())
    _say_once(reason, folder)
    return folder


@functools.cache
def _process_folder(process: int) -> Path:
    # mkdtemp and not a fixed name: a folder that others could have made must not be trusted
    folder = Path(tempfile.mkdtemp(prefix="graphgps_kmip-"))
    atexit.register(_remove, folder, process)
    return folder


@functools.cache
def _say_once(reason: str, folder: Path) -> None:
    logger.warning("%s: compiled kernels are stored in %s, for this process only", reason, folder)


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork, whose parent goes on
        shutil.rmtree(folder, ignore_errors=True)
