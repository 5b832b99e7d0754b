"""Ways in which a JSON file is found damaged, for every reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def _directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _bytes(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


# name -> what it does to a file that holds one JSON object
DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": _bytes(b""),
    "blank": _bytes(b" \n"),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]) and None,
    "not JSON": _bytes(b"accuracy: 0.9\n"),
    "a list": _bytes(b"[1, 2]\n"),
    "a number": _bytes(b"7\n"),
    "null": _bytes(b"null\n"),
    "not UTF-8": _bytes(b'{"name": "\xff"}\n'),
    "UTF-16": _bytes('{"finished": true}\n'.encode("utf-16")),
    "zeros": _bytes(bytes(64) + b"\n"),
    "nested deeply": _bytes(b'{"a":' + b"[" * 100_000 + b"\n"),
    "a number of 5000 digits": _bytes(b'{"seed": ' + b"9" * 5000 + b"}\n"),
    "a directory": _directory,
}


def refuse_reading(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let the operating system refuse to read files of one name, as it does after an error of the disk."""
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == name:
            raise OSError(code, os.strerror(code), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
