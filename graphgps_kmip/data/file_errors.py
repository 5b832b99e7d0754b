"""Errors of reading raw files, turned into one line that names the file, which is kept aside and not used again."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from graphgps_kmip.common.torch_files import shortened
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.disk import is_failed_write
from graphgps_kmip.data.downloads import network_error
from graphgps_kmip.errors import DataError, UnsafeFile, UserError, is_out_of_memory

# What reading a damaged file raises. A full disk (OSError), memory and bugs of other kinds are not the file's fault.
PARSE_ERRORS = (ValueError, LookupError, EOFError, TypeError, AttributeError, ArithmeticError, RuntimeError)


def missing_files(record: DatasetRecord, folder: Path, missing: list[str], reason: object) -> str:
    """Return the line for raw files that are not there: which, where they go, where they come from.

    Args:
        record: of the data set.
        folder: its folder.
        missing: file names relative to the folder.
        reason: why they are not there.
    """
    names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    archives = f" (or {' and '.join(record.raw.archives)} as downloaded)" if record.raw.archives else ""
    page = f" from {record.source.page}" if record.source and record.source.page else ""
    return (
        f"{record.title}: raw files are missing ({reason}): place {names}{archives}{page} into {folder}, or "
        f"set dataset.sample True, which runs without them"
    )


@contextmanager
def naming_damage(record: DatasetRecord, folder: Path, stage: Path | None = None) -> Iterator[None]:
    """Turn an error of parsing into one that names the file that was being read, and keep that file aside."""
    with _watching_opens(stage or folder) as opened:
        try:
            yield
            return
        except Exception as error:
            if offline := network_error(error):
                raise offline from None
            if isinstance(error, FileNotFoundError) and (absent := _inside(error.filename, stage or folder)):
                raise DataError(missing_files(record, folder, [absent], f"the other files ask for {absent}")) from error
            if not opened or not _is_files_fault(error):
                raise
            cause = error
    path = Path(opened[0])
    linked = stage is not None and path.is_symlink()
    place = path.readlink() if linked else folder / path.relative_to(stage or folder)
    if path.exists() and not place.exists():  # it came from the network, or out of an archive, just now
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)
    raise DataError(set_aside(record, folder, place, _reason(cause))) from cause


def _reason(error: Exception) -> str:
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    kind = "" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: "  # its text is of ours
    return f"{kind}{shortened(str(error))}"


def _inside(name: str | bytes | int | None, folder: Path) -> str:
    """Return a file's name relative to a folder; "" if it is not inside."""
    path = Path(name) if isinstance(name, str) else None
    return str(path.relative_to(folder)) if path and path.is_relative_to(folder) else ""


def _is_files_fault(error: Exception) -> bool:
    """Tell a damaged file from a full disk, too little memory, or a data set that says itself what is wrong."""
    if isinstance(error, DataError):
        return isinstance(error, UnsafeFile)
    if is_failed_write(error) or is_out_of_memory(error):
        return False
    if isinstance(error, OSError):  # some archives raise it without a number; with one it is the system's
        return error.errno is None
    # Archives, compressed files and pickles have kinds of their own.
    names = {kind.__name__ for kind in type(error).__mro__}
    own = {"UnpicklingError", "BadZipFile", "TarError", "LZMAError", "error"}
    return isinstance(error, PARSE_ERRORS) or bool(names & own)


def set_aside(record: DatasetRecord, folder: Path, path: Path, reason: str) -> str:
    """Set a file aside and return the words for it."""
    page = f" from {record.source.page}" if record.source and record.source.page else ""
    if not path.is_file():
        return f"{record.title}: {path} cannot be used ({reason}): put it{page} there again"
    if path.relative_to(folder).parts[0] == Path(record.raw.processed).parts[0]:
        shutil.rmtree(folder / record.raw.processed)  # made by us, and made again from the raw files
        return f"{record.title}: {path} is damaged ({reason}) and was removed: start again, it is made anew"
    aside = free_name(path, "damaged")
    os.replace(path, aside)
    return f"{record.title}: {path} cannot be used ({reason}); it now lies in {aside.name}: put a good copy{page} there"


def free_name(path: Path, word: str) -> Path:
    """Return ``<path>.<word>-N`` with the smallest N for which there is no such file yet."""
    names = (path.with_name(f"{path.name}.{word}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())


_watched: ContextVar[tuple[str, list[str]] | None] = ContextVar("watched", default=None)


def _note_open(event: str, arguments: tuple[Any, ...]) -> None:
    watched = _watched.get() if event == "open" else None
    if watched is not None and isinstance(arguments[0], str):
        folder, opened = watched
        path = os.path.abspath(arguments[0])
        if not path.startswith(folder) or os.path.isdir(path):
            return
        if not set(arguments[1] or "r") & set("wax+"):
            opened[:] = [path]
        elif os.path.islink(path):  # a class that fetches anew must write beside a file placed by hand, not into it
            os.unlink(path)


# Hooks cannot be taken away again, so there is one, which looks only where `_watching_opens` says so.
sys.addaudithook(_note_open)


@contextmanager
def _watching_opens(folder: Path) -> Iterator[list[str]]:
    """Yield a list that holds the last file below a folder that was opened for reading."""
    opened: list[str] = []
    token = _watched.set((f"{folder}{os.sep}", opened))
    try:
        yield opened
    finally:
        _watched.reset(token)
