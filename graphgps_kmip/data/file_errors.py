"""Errors of files and disks while data is read: damaged raw files, a full disk, too little memory; one line each."""

from __future__ import annotations

import errno
import lzma
import pickle
import sqlite3
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch_geometric.data import Data

from graphgps_kmip.common.torch_files import UnreadableFile, asked_for, reason, shortened
from graphgps_kmip.errors import DataError, UnsafeFile, UserError, is_out_of_memory

# What a damaged or missing file, a full disk or too little memory raise. Other kinds are bugs of the reading code.
FILE_ERRORS = (OSError, EOFError, ValueError, MemoryError, RecursionError)
FILE_ERRORS += (sqlite3.Error, zlib.error, lzma.LZMAError, struct.error, pickle.UnpicklingError)
# What reading a damaged file raises. A full disk (OSError), memory and bugs of other kinds are not the file's fault.
PARSE_ERRORS = (ValueError, LookupError, EOFError, ArithmeticError, RuntimeError, *FILE_ERRORS[6:])
PARSE_ERRORS += (zipfile.BadZipFile, tarfile.TarError)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
FREE = "free space there, or set dataset.dir to a folder on another disk"


class DamagedFile(DataError):
    """A file cannot be used: which, and the reason in a few words."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: it cannot be used ({self.reason}): write it again"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise `DamagedFile` in place of what reading a damaged file raises inside."""
    try:
        yield
    except Exception as error:
        if not is_damage(error) and not isinstance(error, TypeError | AttributeError):
            raise
        raise DamagedFile(path, damage_reason(error)) from error


def is_damage(error: Exception) -> bool:
    """Return whether an error of a reader means a damaged file: not a full disk, too little memory, or a bug."""
    if isinstance(error, DataError):
        return isinstance(error, UnsafeFile)
    if is_failed_write(error) or is_out_of_memory(error) or isinstance(error, NotImplementedError):
        return False
    if isinstance(error, OSError):  # some archives raise it without a number; with one it is the system's
        return error.errno is None
    return isinstance(error, PARSE_ERRORS)


def damage_reason(error: Exception) -> str:
    """Return why a file cannot be used, in a few words of one line."""
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if asked_for(error) or isinstance(error, UnreadableFile) or "PytorchStreamReader" in str(error):
        return reason(error)
    kind = "" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: "  # its text is of ours
    return f"{kind}{shortened(str(error))}"


def is_failed_write(error: BaseException) -> bool:
    """Return whether torch, SQLite or numpy say, without an errno, that the disk did not take what they wrote."""
    text = str(error)
    if isinstance(error, RuntimeError):  # torch.save to a path
        return "inline_container" in text and ("unexpected pos" in text or "Writer" in text)
    if isinstance(error, sqlite3.OperationalError):
        return "full" in text or "disk I/O" in text or "readonly" in text
    return isinstance(error, OSError) and error.errno is None and "written" in text  # numpy's tofile


@contextmanager
def naming_disk(what: str, folder: Path) -> Iterator[None]:
    """Turn a full disk, denied access and too little memory into a `DataError` that names what is done."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        fix = "check the disk, or set dataset.dir to a folder on another one"
        if error.errno in FULL or is_failed_write(error):
            fix = FREE
        elif error.errno in DENIED:
            fix = "check its permissions, or set dataset.dir to a folder of yours"
        place = error.filename2 or error.filename or folder
        raise DataError(f"{what}: {error.strerror or kind_and_text(error)} ({place}): {fix}") from error
    except (RuntimeError, sqlite3.OperationalError, MemoryError) as error:
        if is_out_of_memory(error):
            raise DataError(
                f"{what}: there is too little memory for what the files in {folder} claim to hold "
                f"({kind_and_text(error)}): close other programs, or put good copies of them there"
            ) from error
        if not is_failed_write(error):
            raise
        raise DataError(f"{what}: {folder} cannot be written ({kind_and_text(error)}): {FREE}") from error


def kind_and_text(error: BaseException) -> str:
    """Return kind and text of an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def graph_at(graphs: Sequence[Data], number: int, place: str) -> Data:
    """Return one graph of a sequence that may read it from disk; `place` names it in the error if it cannot be read."""
    try:
        return graphs[number]
    except DataError:
        raise
    except FILE_ERRORS as error:
        raise DataError(f"{place} cannot be read ({kind_and_text(error)}): write its file again") from error
