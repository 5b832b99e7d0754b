"""JSON reading that says how a file is damaged, by other programs, full disks or text editors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ResultsError, RunFolderError


class Damaged(ValueError):
    """The content of a file is not what was written; the message says how, in a few words."""


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, None if there is none.

    Raises:
        Damaged: it is a directory.
        RunFolderError: it cannot be read, so that its content is not known.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise Damaged("a directory is in its place") from None
    except OSError as error:
        raise RunFolderError(
            f"Cannot read {path}: {error.strerror}; make it readable, or set another out_dir."
        ) from error


def parsed(text: bytes) -> Any:
    """Return the value of a JSON text; NaN and Infinity are numbers, as Python writes them.

    Raises:
        Damaged: it is empty, or no JSON in UTF-8.
    """
    if not text.strip():
        raise Damaged("it is empty")
    try:
        return json.loads(text.decode("utf-8"))
    except UnicodeDecodeError:
        raise Damaged("it is not UTF-8 text") from None
    except RecursionError:
        raise Damaged("it is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number of more digits than Python reads
        raise Damaged(f"it is not JSON: {str(error)[:80]}") from None


def parsed_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a text.

    Raises:
        Damaged: it is empty, no JSON, or JSON of another type.
    """
    content = parsed(text)
    if not isinstance(content, dict):
        raise Damaged(f"it holds {KINDS.get(type(content), 'something else')}, not an object")
    return content


def read_artefact(path: Path) -> dict[str, Any]:
    """Return the JSON object that a command wrote.

    Raises:
        ResultsError: the file is missing or damaged.
        RunFolderError: it cannot be read.
    """
    try:
        text = read_bytes(path)
        if text is None:
            raise Damaged("it is missing")
        return parsed_object(text)
    except Damaged as damage:
        raise ResultsError(f"{path} cannot be used ({damage}): delete it and run the command again") from None


KINDS = {list: "a list", str: "a text", int: "a number", float: "a number", bool: "a truth value", type(None): "null"}


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_amount(value: Any) -> bool:
    """Return whether a value is a finite number of at least 0."""
    return is_number(value) and math.isfinite(value) and value >= 0
