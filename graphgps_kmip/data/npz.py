"""Arrays of numbers from an ``.npz`` file, whose claims are checked before memory is taken for them."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np

from graphgps_kmip.data.tensors import size_text, total_memory
from graphgps_kmip.errors import DataError

NUMBERS = "biuf"  # kinds of dtype: bool, signed, unsigned, float


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, in the byte order of this machine; long doubles become float64.

    Args:
        file: as `numpy.savez` writes it, compressed or not.

    Raises:
        DataError: a name occurs twice, an array does not hold real numbers, or claims more than the file holds or
            than fits into memory.
        BadZipFile, ValueError, EOFError, zlib.error: the file is damaged.
    """
    with zipfile.ZipFile(file) as archive:
        names = [member.filename for member in archive.infolist()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{file}: it holds {twice[0]} twice: write it again")
        if other := [name for name in names if not name.endswith(".npy")]:
            raise DataError(f"{file}: {other[0]!r} in it is no array: write the file with numpy.savez")
        total = 0
        for member in archive.infolist():
            total += _claimed(archive, member, file)
        if total > total_memory():
            raise DataError(
                f"{file}: its arrays claim {size_text(total)}, and this machine has {size_text(total_memory())}"
            )
    with np.load(file, allow_pickle=False) as arrays:
        return {key: _native(arrays[key]) for key in arrays.files}


def _claimed(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> int:
    """Return the bytes that an array's header claims, once they are what its member holds."""
    key = member.filename.removesuffix(".npy")
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
        if read is None:  # version 3.0 is for names of columns
            raise DataError(f"{file}: {key} has columns with names: save a plain array of numbers")
        shape, _, dtype = read(content)
        header = content.tell()
    if dtype.hasobject:
        raise DataError(f"{file}: {key} holds objects: save numbers (a list of rows of different lengths is objects)")
    if dtype.kind not in NUMBERS:
        raise DataError(f"{file}: {key} holds {dtype}, not real numbers: leave it out or encode it as numbers")
    claimed = math.prod(shape) * dtype.itemsize  # of Python's integers: it cannot overflow
    if claimed != member.file_size - header:
        raise DataError(
            f"{file}: {key} claims shape {shape}, {size_text(claimed)}, and holds "
            f"{size_text(max(0, member.file_size - header))}: write the file again"
        )
    return claimed


def _native(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
