"""What the tests of data sets share: a network that is down, code that hides in a file, writers of raw files."""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import URLError

import torch

from graphgps_kmip.data import DatasetRecord, GraphDataset, open_dataset, raw_files


class Code:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


@contextmanager
def offline() -> Iterator[None]:
    """Fail every download at once, also where there is a network."""
    error = URLError("no network")
    with patch.object(raw_files, "urlopen", side_effect=error), patch.object(socket, "getaddrinfo", side_effect=error):
        yield


def opened(record: DatasetRecord, root: Path, **options: int | str) -> GraphDataset:
    with offline():
        return open_dataset(record, root, **options)


def write(path: Path, content: Any) -> None:
    """Write a raw file: text and bytes as they are, all else by torch (.pt) or by plain pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.suffix == ".pt":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))


def write_tables(folder: Path, tables: Mapping[str, Iterable[Any]]) -> None:
    """Write each table as ``folder/name.csv.gz``, without a header; a row that is not a sequence has one value."""
    for name, rows in tables.items():
        lines = (",".join(map(str, row)) if isinstance(row, list | tuple) else str(row) for row in rows)
        write(folder / f"{name}.csv.gz", gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def pack(raw: Path, archive: Path, inside: str = "") -> None:
    """Move the files below a folder into an archive, a zip or tar.gz, there below the folder ``inside``."""
    files = sorted(path for path in raw.rglob("*") if path.is_file() and path != archive and path.name != ".lock")
    with zipfile.ZipFile(archive, "w") if archive.suffix == ".zip" else tarfile.open(archive, "w:gz") as packed:
        for path in files:
            name = str(Path(inside, path.relative_to(raw)))
            packed.write(path, name) if archive.suffix == ".zip" else packed.add(path, name)
            path.unlink()
