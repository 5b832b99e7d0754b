"""File locks between processes: data preparation, run folders, jobs. Each lock ends with the process that holds it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from graphgps_kmip.errors import DataError

log = logging.getLogger(__name__)


@contextmanager
def held(path: Path, wait: float = -1.0) -> Iterator[None]:
    """Hold a lock file, whose folder is made, during the block; this process may take it again inside of it.

    Args:
        path (Path): the lock file.
        wait (float, optional): seconds to wait for another process; negative: without end. (default: ``-1.0``)

    Raises:
        OSError: the file cannot be made or locked; `filelock.Timeout` if another process still holds it.
    """
    path = Path(path).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=True)
    lock.acquire(timeout=wait)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked(path: Path, title: str) -> Iterator[None]:
    """Hold a lock file: one process prepares `title`, the others wait and log that they do."""
    with ExitStack() as stack:
        try:
            try:
                stack.enter_context(held(path, wait=0.2))
            except Timeout:
                log.info("%s: waiting for another process that prepares it", title)
                stack.enter_context(held(path))
        except OSError as error:
            fix = "set dataset.dir or out_dir to a folder of yours"
            raise DataError(f"{title}: cannot write to {path.parent} ({error.strerror or error}): {fix}") from error
        yield


def take_descriptor(path: Path) -> int | None:
    """Return an open file descriptor that holds a lock file as `held` does, None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    if _try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def is_held(path: Path) -> bool:
    """Return whether some process holds a lock file, without making the file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # nobody ever locked it
        return False
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    import fcntl  # POSIX only, as are the jobs that use descriptors

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
