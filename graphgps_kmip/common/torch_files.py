"""Files of torch.save: tensors and plain containers only, no code is run, and checksums are compared.

For what a run leaves for the next: checkpoints, scores, splits, encodings. torch.load does not read the checksums.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals, get_unsafe_globals_in_checkpoint

from graphgps_kmip.common.atomic_write import replacing

Source = str | Path | BinaryIO
# What torch.load raises for a file that is damaged, hostile or something else.
ERRORS = (OSError, EOFError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
ERRORS += (pickle.UnpicklingError, zipfile.BadZipFile, struct.error, MemoryError)
LONGEST = 160  # characters of another package's message


class UnreadableFile(ValueError):
    """A file is damaged, not one of torch.save's, or asks for more than tensors; the text is the reason, one line."""


class _Left:
    """Stands for each class or function of a file that is not plain data: an object of it is an empty mapping."""

    def __new__(cls, *args: Any, **kwargs: Any) -> OrderedDict:  # type: ignore[misc]  # noqa: ARG004
        return OrderedDict()  # the one type into which torch's reader sets items as well as attributes


@contextmanager
def allowing(classes: Iterable[tuple[Callable, str]]) -> Iterator[None]:
    """Let torch's reader build these (class or function, full name in the file) and its own types, and nothing else."""
    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals(list(classes))
    try:
        with torch.sparse.check_sparse_tensor_invariants():
            yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def save_plain(path: Path, content: Any) -> None:
    """Write a file for `load_plain` in one step, see `replacing`; an OSError if it cannot be written."""
    with replacing(path) as temporary, open(temporary, "wb") as file:  # to a path, torch hides the OSError
        torch.save(content, file)


def load_plain(file: Source, mmap: bool = False) -> Any:
    """Return the content of a file of `save_plain`, its tensors on the CPU.

    With ``mmap`` they are read from disk at use, if the file is a path; writing to one does not change the file.

    Raises:
        UnreadableFile: it cannot be read, a checksum is wrong, or it holds anything but tensors and plain containers.
    """
    with allowing(()):
        return _load(file, mmap)


def load_leaving_objects(file: Path) -> tuple[Any, list[str]]:
    """Return the content of a file of torch.save and the names of the classes in whose place are empty mappings.

    Raises:
        UnreadableFile: it cannot be read, or asks for modules that torch never reads from (os, sys).
    """
    with allowing(()):
        try:
            check_archive(file)
            names = sorted(get_unsafe_globals_in_checkpoint(str(file)))
        except ERRORS:  # not one of torch's archives: the older format, or damaged
            names = []
    with allowing((_Left, name) for name in names):
        return _load(file), names


def _load(file: Source, mmap: bool = False) -> Any:
    try:
        check_archive(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except ERRORS as error:
        raise UnreadableFile(reason(error)) from error


def check_archive(file: Any) -> None:
    """Read a file of torch.save, a path or an open file, to its end, and refuse it if it is not as it was written.

    Compressed members are refused, too: a small one may hold terabytes. The format before torch 1.6 has no checksums.

    Raises:
        UnreadableFile: it is damaged, or compressed.
        OSError: there is no such file, or it cannot be read.
    """
    with nullcontext(file) if hasattr(file, "read") else open(file, "rb") as source:
        here = source.tell()
        try:
            if source.read(2) != b"PK":
                return
            with zipfile.ZipFile(source) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise UnreadableFile("its content is compressed, which torch.save never does")
                if name := archive.testzip():
                    raise UnreadableFile(f"the checksum of {name} in it is wrong")
        except (UnreadableFile, OSError):
            raise
        except ERRORS as error:
            raise UnreadableFile(reason(error)) from error
        finally:
            source.seek(here)


def asked_for(error: BaseException) -> str:
    """Return the name that torch's reader refused, or ""."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    return named[1] if named else ""


def reason(error: BaseException) -> str:
    """Return why a file could not be read, in one line of ours."""
    text = str(error)
    if isinstance(error, UnreadableFile):
        return text
    if named := asked_for(error):
        return f"it asks for {named}, which is neither a tensor nor a plain container"
    if isinstance(error, pickle.UnpicklingError):
        return "it holds more than tensors and plain containers, or is damaged"
    if isinstance(error, EOFError):
        return "it is empty, or ends too early"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, zipfile.BadZipFile) or "PytorchStreamReader" in text:
        return "it is not a file of torch.save, or only a part of one"
    return shortened(text) or type(error).__name__


def shortened(text: str) -> str:
    """Return a message of another package in one line, without terminal codes, cut between words if it is long."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(' ', 1)[0]} ..."
