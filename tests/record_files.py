"""The files of tests/golden: every record of one kind in one compressed file, each distinct array once.

A file is xz around: the length of a JSON header (8 bytes, little endian), the header, the bytes of the arrays. The
header has `arrays`, the dtype and shape of each in the order of the bytes, and `records`, for each record its array
names with the number of the array. Numbers only: nothing that is read can run.
"""

from __future__ import annotations

import functools
import json
import lzma
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent / "golden"
Record = dict[str, np.ndarray]


def record(name: str) -> Record:
    """Return the arrays of ``<kind>/<record>``; a KeyError if there is none, for all of them are in the repository."""
    kind, _, name = name.partition("/")
    return {key: array.copy() for key, array in kind_of_records(kind)[name].items()}


@functools.cache
def kind_of_records(kind: str) -> dict[str, Record]:
    """Return all records of a kind by name; the arrays are read-only."""
    return read(GOLDEN / f"{kind}.xz")


def read(path: Path) -> dict[str, Record]:
    content = lzma.decompress(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    arrays = []
    for dtype, shape in header["arrays"]:
        size = math.prod(shape)
        arrays.append(np.frombuffer(content, dtype, size, start).reshape(shape))
        start += arrays[-1].nbytes
    return {name: {key: arrays[i] for key, i in keys.items()} for name, keys in header["records"].items()}


def write(path: Path, records: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the records of a file.

    To add records to a kind: ``write(GOLDEN / "B_layers.xz", {**read(GOLDEN / "B_layers.xz"), "new": {...}})``.
    """
    numbers: dict[tuple[str, tuple[int, ...], bytes], int] = {}
    table = {
        name: {
            key: numbers.setdefault((array.dtype.str, array.shape, array.tobytes()), len(numbers))
            for key, array in arrays.items()
        }
        for name, arrays in records.items()
    }
    header = json.dumps({"arrays": [key[:2] for key in numbers], "records": table}, separators=(",", ":")).encode()
    content = len(header).to_bytes(8, "little") + header + b"".join(key[2] for key in numbers)
    path.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
