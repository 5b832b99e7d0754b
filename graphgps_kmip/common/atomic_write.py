"""Atomic writes: a reader, or a run killed meanwhile, finds the old content of a file or the new, never a part."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp"  # ends the name of a file that is being written


def temporary_ending() -> str:
    """Return what is appended to a file's name while it is written: another one for each writer of one file."""
    return f".{secrets.token_hex(4)}{TEMPORARY}"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, to be written by the block; at its end it is renamed to `path`.

    It is forced to disk first. After an error `path` is as it was, and the temporary file is removed. Processes that
    write one file at once do not meet: the last one that ends wins.
    """
    temporary = path.with_name(path.name + temporary_ending())
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step, see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left of files in a folder and below; only while no other process writes there."""
    for part in folder.rglob(f"*{TEMPORARY}"):
        part.unlink()


def free_name(path: Path, word: str) -> Path:
    """Return ``<path>.<word>-N`` with the smallest N >= 1 that does not exist: where to move what is in the way."""
    names = (path.with_name(f"{path.name}.{word}-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())
