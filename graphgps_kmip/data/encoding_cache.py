"""Cache on disk of precomputed encodings: written once, checked at each start, mapped into memory.

Values of all graphs are stored one after the other in one file per attribute. So 12,000 small graphs need no file of
their own each, and one graph of 500,000 nodes need not be read before it is used. ``columns.pt`` holds their shapes and
the checksums of these files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphgps_kmip import __version__
from graphgps_kmip.common.file_lock import locked
from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.data.downloads import sha256
from graphgps_kmip.data.file_errors import naming_disk
from graphgps_kmip.errors import DataError, InputError

log = logging.getLogger(__name__)
COLUMNS = "columns.pt"
PROVENANCE = "provenance.json"  # for people
SHAPE = np.dtype(np.int64)

Packed = dict[str, tuple[np.ndarray, np.ndarray]]  # attribute -> values of some graphs, flat; shapes (graphs, dims)


class Column:
    """One attribute of every graph.

    Args:
        values: of all graphs, flat, one graph after the other.
        shapes: of each graph's tensor.

    Shapes:
        values (V,); shapes (G, dims).
    """

    def __init__(self, values: np.ndarray, shapes: np.ndarray) -> None:
        self.values, self.shapes = values, shapes
        self.bounds = np.append(0, shapes.prod(axis=1).cumsum())
        if self.bounds[-1] != len(values):
            raise InputError(f"{len(values):,} values where the shapes of the graphs say {self.bounds[-1]:,}")

    @classmethod
    def mapped(cls, path: Path, dtype: str, shapes: np.ndarray) -> Column:
        """Return a column whose values stay in a file until they are used."""
        empty = path.stat().st_size == 0  # which cannot be mapped
        return cls(np.empty(0, dtype) if empty else np.memmap(path, dtype, mode="r"), shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> Tensor:
        """Return one graph's tensor, a copy that the caller may change."""
        values = np.array(self.values[self.bounds[index] : self.bounds[index + 1]])
        return torch.from_numpy(values.reshape(self.shapes[index]))

    def __reduce__(self) -> tuple[Any, ...]:  # a loader's process that is not forked maps the file itself
        if isinstance(self.values, np.memmap):
            return Column.mapped, (Path(self.values.filename), self.values.dtype.str, self.shapes)
        return Column, (self.values, self.shapes)


def in_memory(packs: Iterable[Packed]) -> dict[str, Column]:
    """Return the columns of packs of consecutive graphs without keeping them."""
    packs = list(packs)
    names = packs[0] if packs else ()
    return {name: Column(*map(np.concatenate, zip(*(pack[name] for pack in packs), strict=True))) for name in names}


def kept(
    folder: Path, key: Mapping[str, Any], graphs: int, compute: Callable[[], Iterable[Packed]]
) -> dict[str, Column]:
    """Return the columns stored in a folder under a key, or compute and store them; one process does, others wait.

    Args:
        folder: of all encodings of a data set.
        key: everything that decides the values; ``key["encoding"]`` begins the name.
        graphs: their number.
        compute: gives packs of consecutive graphs that together are all.

    Raises:
        DataError: the folder cannot be written to.
    """
    folder = folder.expanduser().absolute()
    with naming_disk(f"encoding {key['encoding']}", folder):
        return _kept(folder, key, graphs, compute)


def _kept(
    folder: Path, key: Mapping[str, Any], graphs: int, compute: Callable[[], Iterable[Packed]]
) -> dict[str, Column]:
    place = folder / _name(key)
    if place.is_dir() and (columns := _opened(place, graphs)) is not None:  # nothing to write: no lock, no rights
        return columns
    with locked(folder / f".{place.name}.lock", f"encoding {place.name}"):
        if place.is_dir():
            if (columns := _opened(place, graphs)) is not None:
                return columns
            shutil.rmtree(place)
        part = folder / f".{place.name}.part"
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        try:
            _write(part, key, graphs, compute())
            part.rename(place)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    if (columns := _opened(place, graphs)) is None:
        raise DataError(f"{place}: what was just written cannot be read: is the disk sound?")
    return columns


def _name(key: Mapping[str, Any]) -> str:
    text = json.dumps(key, sort_keys=True)
    return f"{key['encoding']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _opened(place: Path, graphs: int) -> dict[str, Column] | None:
    """Return the columns in a folder; None, and a line in the log, if any of it is not as it was written."""
    try:
        stored = load_plain(place / COLUMNS)
        if stored["name"] != place.name or stored["graphs"] != graphs:
            raise InputError(f"{COLUMNS} is about other values")
        columns = {}
        for name, (dtype, shapes, digest) in stored["columns"].items():
            file = place / f"{name}.values"
            if sha256(file) != digest:
                raise InputError(f"{file.name} is not as it was written")
            columns[name] = Column.mapped(file, dtype, shapes.numpy())
    except (FileNotFoundError, UnreadableFile, InputError) as error:
        log.warning("%s is damaged (%s): it is not used, and computed again", place, error)
        return None
    log.info("read from %s, computed on %s", place, stored["date"])
    return columns


def _write(part: Path, key: Mapping[str, Any], graphs: int, packs: Iterable[Packed]) -> None:
    start = time.perf_counter()
    part.mkdir()
    dtypes: dict[str, str] = {}
    shapes: dict[str, list[np.ndarray]] = {}
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for pack in packs:
            for name, (values, shape) in pack.items():
                if name not in files:
                    files[name] = stack.enter_context(open(part / f"{name}.values", "wb"))
                    dtypes[name], shapes[name] = values.dtype.str, []
                values.tofile(files[name])
                shapes[name].append(shape)
    columns = {
        name: (dtype, torch.from_numpy(np.concatenate(shapes[name])), sha256(part / f"{name}.values"))
        for name, dtype in dtypes.items()
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    save_plain(part / COLUMNS, {"name": _name(key), "graphs": graphs, "columns": columns, "date": date})
    provenance = {
        "key": key,
        "attributes": dtypes,
        "graphs": graphs,
        "package": f"graphgps_kmip {__version__}",
        "date": date,
        "seconds": round(time.perf_counter() - start, 3),
    }
    (part / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")
