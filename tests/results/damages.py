"""Ways in which a JSON file is found damaged, for every reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CONTENTS = {"empty": b"", "not JSON": b"accuracy: 0.9\n", "a list": b"[1, 2]\n", "not UTF-8": b'{"name": "\xff"}\n'}
# name -> what it does to a file
DAMAGES: dict[str, Callable[[Path], object]] = {
    name: lambda path, content=content: path.write_bytes(content) for name, content in CONTENTS.items()
}
