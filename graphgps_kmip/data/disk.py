"""A full or unreadable disk, and too little memory, while data is prepared: reported in one line with the folder."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphgps_kmip.data.reading import one_line
from graphgps_kmip.errors import DataError, UserError, is_out_of_memory

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def is_failed_write(error: BaseException) -> bool:
    """Tell whether torch, SQLite or numpy say in words of their own that the disk did not take what they wrote."""
    text = str(error)
    if isinstance(error, RuntimeError):  # torch.save to a path
        return "inline_container" in text and ("unexpected pos" in text or "Writer" in text)
    if isinstance(error, sqlite3.OperationalError):
        return "full" in text or "disk I/O" in text or "readonly" in text
    return isinstance(error, OSError) and error.errno is None and "written" in text  # numpy's tofile


@contextmanager
def naming_disk(what: str, folder: Path) -> Iterator[None]:
    """Turn errors of the system into one line.

    Args:
        what: is being done, such as "preparing Cora".
        folder: that is read and written.

    Raises (inside):
        DataError: the disk is full, a file may not be read or written, or there is too little memory.
    """
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        place = next((str(name) for name in (error.filename2, error.filename) if name), str(folder))
        raise DataError(f"{what}: {error.strerror or one_line(error)} ({place}): {_fix(error)}") from error
    except (RuntimeError, sqlite3.OperationalError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DataError(
                f"{what}: there is too little memory for what the files in {folder} claim to hold "
                f"({one_line(error)}): close other programs, or put good copies of them there"
            ) from error
        if not is_failed_write(error):
            raise
        raise DataError(f"{what}: {folder} cannot be written ({one_line(error)}): {FREE}") from error


FREE = "free space there, or set dataset.dir to a folder on another disk"


def _fix(error: OSError) -> str:
    if error.errno in FULL or is_failed_write(error):
        return FREE
    if error.errno in DENIED:
        return "check its permissions, or set dataset.dir to a folder of yours"
    if error.errno == errno.EMFILE:
        return "raise the limit of open files, ulimit -n"
    return "check the disk, or set dataset.dir to a folder on another one"
