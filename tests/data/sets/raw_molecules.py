"""What the tests of LRGB, ZINC and AQSOL share: raw files as published, and code that hides in them."""

from __future__ import annotations

import pickle
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.data import DataError, DatasetRecord, open_dataset
from tests.data.sets.raw_files import offline


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
