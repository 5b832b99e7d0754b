"""From raw files to a trusted data set: downloads, archives, damage, kills, full disks, two processes at once."""

from __future__ import annotations

import errno
import functools
import io
import os
import resource
import sqlite3
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.response import addinfourl

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset

from graphgps_kmip.data import (
    DataError,
    DatasetRecord,
    GraphDataset,
    RawFiles,
    Source,
    at_hand,
    open_dataset,
    raw_files,
)
from graphgps_kmip.data.dataset_info import load_or_summarize
from graphgps_kmip.data.precomputed_encodings import encoded
from graphgps_kmip.data.raw_files import unpack
from tests.data.toy_encodings import Rings, folders, ones, start

RAW = RawFiles("Numbers", ("raw/one.pt", "raw/two.pt"), archives=("numbers.zip",))
RECORD = DatasetRecord(
    format="Test",
    name="numbers",
    title="Numbers",
    load=lambda home: Numbers(home),
    task_type="regression",
    raw=RAW,
    source=Source("nobody", "none", "numbers.example"),
)


class Numbers(InMemoryDataset):
    before_save: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.load(self.processed_paths[0])

    raw_file_names = ("one.pt", "two.pt")
    processed_file_names = "data.pt"

    def process(self) -> None:
        numbers = [torch.load(path, weights_only=False) for path in self.raw_paths]
        graphs = [Data(x=number.reshape(1, 1), edge_index=torch.empty(2, 0).long(), y=number) for number in numbers]
        self.before_save()
        self.save(graphs * 5, self.processed_paths[0])


def number(value: float) -> torch.Tensor:
    return torch.tensor([value])


def place(root: Path, *names: str) -> Path:
    raw = root / "Numbers" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for value, name in enumerate(names or ("one.pt", "two.pt"), start=1):
        torch.save(number(value), raw / name)
    return raw


def archive(folder: Path, damaged: bool = False) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "numbers.zip", "w") as file:
        for value, name in ((7, "one.pt"), (8, "two.pt")):
            torch.save(number(value), folder / "part")
            file.write(folder / "part", name)
    (folder / "part").unlink()
    content = (folder / "numbers.zip").read_bytes()
    if damaged:
        (folder / "numbers.zip").write_bytes(content[:100])
    return content


def values(root: Path) -> list[float]:
    return sorted({float(graph.y) for graph in open_dataset(RECORD, root).graphs})


def test_hand_placed_files_are_processed_once_and_without_a_network(tmp_path: Path) -> None:
    place(tmp_path)
    assert at_hand(RECORD, tmp_path)
    assert values(tmp_path) == [1, 2]
    made = (tmp_path / "Numbers" / "processed" / "data.pt").stat().st_mtime_ns
    assert values(tmp_path) == [1, 2]
    assert (tmp_path / "Numbers" / "processed" / "data.pt").stat().st_mtime_ns == made
    assert not (tmp_path / "Numbers" / ".preparing").exists()


def test_without_files_and_network_one_line_says_what_to_do_and_deletes_nothing(tmp_path: Path) -> None:
    raw = place(tmp_path, "one.pt")
    assert not at_hand(RECORD, tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset(RECORD, tmp_path)
    line = str(caught.value)
    start = (
        "Numbers: raw files are missing (no address of them is known): place raw/two.pt (or numbers.zip as downloaded)"
    )
    assert line.startswith(f"{start} from numbers.example into {tmp_path / 'Numbers'}, or set dataset.sample True")
    assert (raw / "one.pt").exists()


def test_an_archive_as_downloaded_will_do(tmp_path: Path) -> None:
    archive(tmp_path / "Numbers")
    assert at_hand(RECORD, tmp_path)
    assert values(tmp_path) == [7, 8]
    assert (tmp_path / "Numbers" / "numbers.zip").exists()
    assert (tmp_path / "Numbers" / "raw" / "one.pt").exists()
    made = (tmp_path / "Numbers" / "processed" / "data.pt").stat().st_mtime_ns
    (tmp_path / "Numbers" / "numbers.zip").unlink()  # to have its space
    assert values(tmp_path) == [7, 8]
    assert (tmp_path / "Numbers" / "processed" / "data.pt").stat().st_mtime_ns == made


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder whose files answer every download, whatever its address, by their names."""
    folder = tmp_path / "server"
    folder.mkdir()
    opener = raw_files.urlopen
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def local(url: str, timeout: float) -> Any:
            return opener(f"http://127.0.0.1:{server.server_port}/{url.rsplit('/', 1)[-1]}", timeout=timeout)

        monkeypatch.setattr(raw_files, "urlopen", local)
        yield folder
        server.shutdown()


ADDRESSES = {f"raw/{name}": f"http://numbers.example/{name}" for name in ("one.pt", "two.pt")}
ZIPPED = replace(RECORD, raw=replace(RAW, urls={"numbers.zip": "http://numbers.example/numbers.zip"}))


@pytest.mark.parametrize("record", [replace(RECORD, raw=replace(RAW, urls=ADDRESSES)), ZIPPED], ids=["files", "zip"])
def test_what_is_downloaded_is_loaded_and_is_not_downloaded_again(
    record: DatasetRecord, tmp_path: Path, served: Path
) -> None:
    with pytest.raises(DataError, match=r"raw files are missing \(fetching them: .*File not found"):
        open_dataset(record, tmp_path)
    for value, name in enumerate(("one.pt", "two.pt"), start=7):
        torch.save(number(value), served / name)
    archive(served)
    for _ in range(2):
        assert sorted({float(graph.y) for graph in open_dataset(record, tmp_path).graphs}) == [7, 8]
        for file in served.iterdir():
            file.unlink()
    assert sorted(path.name for path in (tmp_path / "Numbers" / "raw").iterdir()) == ["one.pt", "two.pt"]
    assert not (tmp_path / "Numbers" / "numbers.zip").exists()


def test_what_was_downloaded_before_an_error_stays_and_is_not_asked_for(tmp_path: Path, served: Path) -> None:
    record = replace(RECORD, raw=replace(RAW, urls=ADDRESSES))
    torch.save(number(1), served / "one.pt")
    with pytest.raises(DataError, match=r"fetching them: File not found\): place raw/two\.pt"):
        open_dataset(record, tmp_path)
    (served / "one.pt").rename(served / "two.pt")
    assert len(open_dataset(record, tmp_path)) == 10


@pytest.mark.parametrize("damage", ["cut off", "ends early"])
def test_a_download_ends_whole_or_not_at_all(
    damage: str, tmp_path: Path, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive(served, damaged=damage == "cut off")
    if damage == "ends early":
        answer = addinfourl(io.BytesIO(content[:100]), {"Content-Length": str(len(content))}, "")
        monkeypatch.setattr(raw_files, "urlopen", lambda *_, **__: answer)
    message = r"File is not a zip file|the download ended after 100 of "
    with pytest.raises(DataError, match=rf"raw files are missing \(fetching them: .*({message})"):
        open_dataset(ZIPPED, tmp_path)
    assert [path.name for path in (tmp_path / "Numbers").iterdir()] == [".lock"]


ODD = ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "__MACOSX/._one.pt", "deep/deeper/one.pt"]


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_an_archive_writes_nothing_outside_its_folder_and_the_least_deep_file_is_taken(
    ending: str, tmp_path: Path
) -> None:
    place, file = tmp_path / "a" / "b", tmp_path / f"numbers.{ending}"
    place.mkdir(parents=True)
    if ending == "zip":
        with zipfile.ZipFile(file, "w") as packed:
            for name in ("numbers/one.pt", "two.pt", *ODD):
                packed.writestr(name, name)
        unpack(file, ["raw/one.pt", "raw/two.pt"], place)
        assert (place / "raw" / "one.pt").read_text() == "numbers/one.pt"
    else:
        with tarfile.open(file, "w:gz") as packed:
            link = tarfile.TarInfo("one.pt")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            packed.addfile(link)
        with pytest.raises(tarfile.TarError):
            unpack(file, ["raw/one.pt"], place)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()}
    assert names - {"one.pt", "two.pt"} == {file.name}
    assert not Path("/tmp/out.txt").exists()


def test_a_damaged_file_is_named_and_kept_aside(tmp_path: Path) -> None:
    raw = place(tmp_path)
    content = (raw / "two.pt").read_bytes()
    (raw / "two.pt").write_bytes(content[:-200])
    with pytest.raises(DataError, match=r"two\.pt cannot be used .*renamed to two\.pt\.damaged-1: put a good copy"):
        open_dataset(RECORD, tmp_path)
    assert (raw / "two.pt.damaged-1").read_bytes() == content[:-200]
    with pytest.raises(DataError, match=r"place raw/two\.pt"):  # what was set aside is not used again
        open_dataset(RECORD, tmp_path)
    (raw / "two.pt").write_bytes(content)
    assert values(tmp_path) == [1, 2]


def test_what_was_processed_follows_its_raw_files_and_heals(tmp_path: Path) -> None:
    raw = place(tmp_path)
    assert values(tmp_path) == [1, 2]
    torch.save(number(5), raw / "two.pt")  # of the same size
    assert values(tmp_path) == [1, 5]
    made = tmp_path / "Numbers" / "processed" / "data.pt"
    content = made.read_bytes()
    at = content.index(number(5).numpy().tobytes())
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    for damaged, reason in ((content[:100], "it is not a file of .*"), (flipped, "the checksum of .* is wrong")):
        made.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"processed is damaged \({reason}\) and was removed: start again"):
            open_dataset(RECORD, tmp_path)
        assert values(tmp_path) == [1, 5]


def test_processed_files_of_unknown_origin_are_kept_aside_and_not_trusted(tmp_path: Path) -> None:
    place(tmp_path)
    Numbers(str(tmp_path / "Numbers"))  # what torch_geometric itself leaves
    torch.save(number(5), tmp_path / "Numbers" / "raw" / "two.pt")
    assert values(tmp_path) == [1, 5]
    assert (tmp_path / "Numbers" / "processed.old-1" / "data.pt").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to .*set dataset.dir or out_dir to a folder of yours"):
        open_dataset(RECORD, tmp_path / "file")


def open_after(root: Path, before_save: Callable[[], None]) -> None:
    Numbers.before_save = staticmethod(before_save)
    assert values(root) == [1, 2]


def test_a_kill_during_preparation_leaves_nothing_that_is_trusted(tmp_path: Path) -> None:
    place(tmp_path)
    process = start(open_after, tmp_path, functools.partial(os._exit, 9))
    process.join()
    assert process.exitcode == 9
    assert (tmp_path / "Numbers" / ".preparing").exists()
    assert not (tmp_path / "Numbers" / "processed").exists()
    assert values(tmp_path) == [1, 2]
    assert not (tmp_path / "Numbers" / ".preparing").exists()


def slowly(log: Path) -> None:
    with open(log, "a") as file:
        file.write("processed\n")
    time.sleep(0.5)


def test_of_two_processes_one_works_and_one_waits(tmp_path: Path) -> None:
    place(tmp_path)
    processes = [start(open_after, tmp_path, functools.partial(slowly, tmp_path / "log")) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "log").read_text() == "processed\n"


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


WRITERS: dict[str, Callable[[Path], Any]] = {
    "torch": lambda folder: torch.save({"x": torch.ones(1_000)}, str(folder / "data.pt")),
    "numpy": lambda folder: np.savez(folder / "data.npz", x=np.ones(1_000)),
    "tofile": lambda folder: np.ones(10_000).tofile(folder / "data"),
    "sqlite": lambda folder: sqlite3.connect(folder / "data.db").execute("create table rows (value blob)"),
}


def record_of(write: Callable[[Path], None], root: Path) -> DatasetRecord:
    (root / "mine" / "raw").mkdir(parents=True)
    (root / "mine" / "raw" / "size.txt").write_text("10")
    raw = RawFiles("mine", ("raw/size.txt",))
    return DatasetRecord("mine", lambda home: graphs_of(home, write), "classification", title="Mine", raw=raw)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
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
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/data/it"), r"Permission denied \(/data/it\): check"),
        (OSError(errno.EIO, "Input/output error"), r"Input/output error \(.*/mine\): check the disk"),
        (MemoryError("Unable to allocate 745. GiB"), "there is too little memory .*745. GiB.*: close other programs"),
        (RuntimeError("can't allocate memory: you tried to allocate 32 TB"), "there is too little memory .* 32 TB"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_system_is_one_line_and_costs_no_file(error: Exception, message: str, tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise error

    with pytest.raises(DataError, match=f"^preparing Mine: {message}"):
        open_dataset(record_of(fail, tmp_path), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "size.txt"]


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
        assert load_or_summarize(dataset, record, tmp_path).graphs == 6
    assert "cannot be written (File too large): the next start looks anew" in caplog.text
    assert list(tmp_path.iterdir()) == []
