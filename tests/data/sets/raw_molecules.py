"""What the tests of LRGB, ZINC and AQSOL share: raw files as published, and code that hides in them."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import URLError

import pytest
import torch

from graphgps_kmip.data import DataError, DatasetRecord, GraphDataset, fetch, open_dataset


class Code:
    """A pickle that makes a folder when it is read."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def write(path: Path, content: Any) -> None:
    """Write a raw file: text as it is, all else by torch (.pt) or by plain pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    elif path.suffix == ".pt":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))


def pack(raw: Path, archive: Path, inside: str, names: Sequence[str]) -> None:
    """Move raw files into an archive as it is downloaded, below the folder ``inside``."""
    with zipfile.ZipFile(archive, "w") as file:
        for name in names:
            file.write(raw / name, f"{inside}/{name}")
            (raw / name).unlink()


@contextmanager
def offline() -> Iterator[None]:
    """Fail every download at once, also where there is a network."""
    with patch.object(fetch, "_URLOPEN", side_effect=URLError("no network")):
        yield


def opened(record: DatasetRecord, root: Path) -> GraphDataset:
    with offline():
        return open_dataset(record, root)


def check_missing(record: DatasetRecord, root: Path) -> None:
    """Without raw files, one line says which, where to put them, from where, and that a sample runs without them."""
    with offline(), pytest.raises(DataError) as error:
        open_dataset(record, root)
    line = str(error.value)
    assert "\n" not in line
    words = (record.title, *record.raw.files, *record.raw.archives, str(root / record.raw.folder), record.source.page)
    assert [word for word in (*words, "dataset.sample True") if word not in line] == []


def check_refused(record: DatasetRecord, root: Path, name: str, content: Any) -> None:
    """A raw file that holds code is refused by name, and the code, which would make ``root / "it-ran"``, never runs."""
    path = root / record.raw.folder / "raw" / name
    write(path, content)
    with offline(), pytest.raises(DataError, match=rf"{name} cannot be used \(it asks for posix\.mkdir, which no data"):
        open_dataset(record, root)
    assert not (root / "it-ran").exists()
    shutil.move(path.with_name(f"{name}.damaged-1"), path)
    pickle.loads(path.read_bytes()) if path.suffix == ".pickle" else torch.load(path, weights_only=False)
    assert (root / "it-ran").exists()  # it does run where nobody is careful, so that the test says something
