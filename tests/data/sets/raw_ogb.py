"""What the tests of the OGB families share: raw files in ogb's layout, missing files, archives."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Iterable[Sequence[Any] | Any]


def write_tables(folder: Path, tables: Mapping[str, Rows]) -> None:
    """Write each table as ``folder/name.csv.gz``, without a header; a row that is not a sequence has one value."""
    for name, rows in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (",".join(map(str, row)) if isinstance(row, list | tuple) else str(row) for row in rows)
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def pack(folder: Path, inside: str) -> None:
    """Replace the raw files of a data set by the archive that ogb's server gives, with the folder ``inside``."""
    home = folder.with_name("packing")
    home.mkdir()
    folder.rename(home / inside)
    (home / inside / "RELEASE_v1.txt").touch()
    folder.mkdir()
    shutil.make_archive(str(folder / inside), "zip", home, inside)
    shutil.rmtree(home)
