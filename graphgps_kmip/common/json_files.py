"""JSON objects in files: reading, and one line where a file is not what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.errors import ResultsError


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
