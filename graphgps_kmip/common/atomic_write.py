"""Atomic writes: a reader, or a run killed meanwhile, finds the old content of a file or the new; files of JSON."""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ResultsError

TEMPORARY = ".tmp"  # ends the name of a file that is being written


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path for the block to write, which is then forced to disk and renamed to `path`.

    After an error `path` is as it was. Of processes that write one file at once the last one to end wins.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")  # different for each writer
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


class Damaged(ValueError):
    """The content of a file is not what was written; the message says how, in a few words."""


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, None if there is none."""
    return path.read_bytes() if path.exists() else None


def parsed_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a text; NaN and Infinity are numbers, as Python writes them.

    Raises:
        Damaged: it is no JSON in UTF-8, or JSON of another type.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise Damaged(f"it is not JSON: {str(error)[:80]}") from None
    if not isinstance(content, dict):
        raise Damaged("it is not a JSON object")
    return content


def read_artefact(path: Path) -> dict[str, Any]:
    """Return the JSON object that a command wrote.

    Raises:
        ResultsError: the file is missing or damaged.
    """
    try:
        return parsed_object(read_bytes(path) or b"")
    except Damaged as damage:
        raise ResultsError(f"{path} cannot be used ({damage}): delete it and run the command again") from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object in one step; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode())


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
