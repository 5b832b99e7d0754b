"""One process writes a folder below ``dataset.dir``, others wait."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from graphgps_kmip.errors import DataError

log = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, title: str) -> Iterator[None]:
    """Hold a lock file, whose folder is made; a line in the log says so if that takes waiting.

    Args:
        path: the lock file; the lock dies with its process.
        title: what is prepared, for the log and the error.

    Raises:
        DataError: the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0.2)
        except Timeout:
            log.info("%s: waiting for another process that prepares it", title)
            lock.acquire()
    except OSError as error:
        mend = "set dataset.dir to a folder of yours"
        raise DataError(f"{title}: cannot write to {path.parent} ({error.strerror or error}): {mend}") from error
    try:
        yield
    finally:
        lock.release()
