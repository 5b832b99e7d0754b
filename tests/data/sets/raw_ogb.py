"""What the tests of the OGB families share: raw files in ogb's layout, missing files, archives."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.data import DataError, DatasetRecord, open_dataset
from tests.data.sets.raw_molecules import offline

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


def check_missing(record: DatasetRecord, root: Path) -> None:
    """Without raw files, one line says which, where to put them, from where, and that a sample runs without them."""
    with offline(), pytest.raises(DataError) as error:
        open_dataset(record, root)
    line = str(error.value)
    assert "\n" not in line
    words = (record.title, *record.raw.files[:8], *record.raw.archives, str(root / record.raw.folder))
    assert [word for word in (*words, record.source.page, "dataset.sample True") if word not in line] == []
