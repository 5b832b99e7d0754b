"""A full disk, denied files and too little memory while data is prepared: one line, and nothing half-written."""

from __future__ import annotations

import errno
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetRecord, GraphDataset, RawFiles, open_dataset
from graphgps_kmip.data.dataset_info import kept_summary
from graphgps_kmip.data.precomputed_encodings import encoded
from tests.data.toy_encodings import Rings, folders, ones


@contextmanager
def full_disk(size: int = 200) -> Iterator[None]:
    """Let no file grow beyond some bytes, which fails where a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def graphs_of(home: str, write: Callable[[Path], None]) -> list[Data]:
    (number,) = np.loadtxt(Path(home, "raw", "size.txt"), ndmin=1)
    if not Path(home, "processed").exists():
        Path(home, "processed").mkdir()
        write(Path(home, "processed"))
    edges = torch.empty(2, 0, dtype=torch.long)
    return [Data(x=torch.ones(2, 1), edge_index=edges, y=torch.tensor([n % 2])) for n in range(int(number))]


def by_torch(folder: Path) -> None:
    torch.save({"x": torch.ones(1_000)}, str(folder / "data.pt"))


def by_numpy(folder: Path) -> None:
    np.savez(folder / "data.npz", x=np.ones(1_000))


def by_tofile(folder: Path) -> None:
    np.ones(10_000).tofile(folder / "data")


def by_sqlite(folder: Path) -> None:
    with sqlite3.connect(folder / "data.db") as database:
        database.execute("create table rows (value blob)")


WRITERS = [by_torch, by_numpy, by_tofile, by_sqlite]


def record_of(write: Callable[[Path], None], root: Path) -> DatasetRecord:
    (root / "mine" / "raw").mkdir(parents=True)
    (root / "mine" / "raw" / "size.txt").write_text("10")
    raw = RawFiles("mine", ("raw/size.txt",))
    return DatasetRecord("mine", lambda home: graphs_of(home, write), "classification", title="Mine", raw=raw)


@pytest.mark.parametrize("write", WRITERS)
def test_a_full_disk_is_one_line_and_neither_blamed_on_the_raw_file_nor_believed_later(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    record = record_of(write, tmp_path)
    with (
        full_disk(),
        pytest.raises(DataError, match=r"^preparing Mine: .*: free space there, or set dataset.dir") as error,
    ):
        open_dataset(record, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "mine") in str(error.value)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "size.txt"]
    assert len(open_dataset(record, tmp_path)) == 10


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/data/it"),
            r"Permission denied \(/data/it\): check",
        ),
        (OSError(errno.EIO, "Input/output error"), r"Input/output error \(.*/mine\): check the disk"),
        (OSError(errno.EMFILE, "Too many open files"), r"Too many open files .*: raise the limit of open files"),
        (MemoryError("Unable to allocate 745. GiB"), "there is too little memory .*745. GiB.*: close other programs"),
        (RuntimeError("can't allocate memory: you tried to allocate 32 TB"), "there is too little memory .* 32 TB"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_system_is_one_line_and_costs_no_file(error: Exception, words: str, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise error

    with pytest.raises(DataError, match=f"^preparing Mine: {words}"):
        open_dataset(record_of(fail, tmp_path), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "size.txt"]


def test_what_a_killed_process_left_while_it_replaced_a_folder_stops_nobody(tmp_path: Path) -> None:
    record = record_of(by_numpy, tmp_path)
    open_dataset(record, tmp_path)
    (tmp_path / "mine" / ".replaced" / "old").mkdir(parents=True)
    (tmp_path / "mine" / "raw" / "size.txt").write_text("10.0")  # it is prepared anew
    assert len(open_dataset(record, tmp_path)) == 10
    assert not (tmp_path / "mine" / ".replaced").exists()


def test_encodings_on_a_full_disk_are_one_line_and_nothing_is_kept(rings: Rings, tmp_path: Path) -> None:
    dataset = rings(100)
    with full_disk(), pytest.raises(DataError, match=r"^encoding Ones: .*: free space there, or set dataset.dir"):
        encoded(dataset, [ones("Ones", "a")], tmp_path / "encodings", 1)
    assert folders(tmp_path / "encodings") == []
    assert encoded(dataset, [ones("Ones", "a")], tmp_path / "encodings", 1)[0].a.shape == (3, 1)


def test_a_summary_that_cannot_be_written_costs_a_warning_only(
    rings: Rings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset: GraphDataset = rings(6)
    record = DatasetRecord("mine", list, "classification", title="Mine")
    with full_disk(10):
        assert kept_summary(dataset, record, tmp_path).graphs == 6
    assert "cannot be written (File too large): the next start looks anew" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_other_errors_of_a_loading_class_stay_what_they_are(tmp_path: Path) -> None:
    def fault(_: Path) -> Any:
        raise NotImplementedError("a bug")

    record = record_of(lambda _: None, tmp_path)
    strange = DatasetRecord("mine", lambda _: fault(tmp_path), "classification", title="Mine", raw=record.raw)
    with pytest.raises(NotImplementedError, match="a bug"):
        open_dataset(strange, tmp_path)
