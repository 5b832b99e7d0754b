"""From raw files to a trusted data set: archives, downloads, damage, kills, two processes at once."""

from __future__ import annotations

import errno
import functools
import hashlib
import multiprocessing
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, InMemoryDataset, download_url, extract_zip
from torch_geometric.io import fs

from graphgps_kmip.data import DataError, DatasetRecord, RawFiles, Source, at_hand, open_dataset, raw_files
from graphgps_kmip.data.raw_files import SHA256

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
    """Two files of one number each; downloads as careless classes do: it deletes what lies there first."""

    url = "http://127.0.0.1:9/numbers.zip"  # nothing listens there
    before_save: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.load(self.processed_paths[0])

    raw_file_names = ("one.pt", "two.pt")
    processed_file_names = "data.pt"

    def download(self) -> None:
        fs.rm(self.raw_dir)
        path = download_url(self.url, self.root)
        extract_zip(path, self.raw_dir)
        os.unlink(path)

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


@contextmanager
def server(content: bytes, announced: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(announced))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/numbers.zip"
        running.shutdown()


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
    for part in (
        "Numbers: raw files are missing",
        "Connection refused",
        "place raw/two.pt",
        "numbers.zip as downloaded",
    ):
        assert part in line
    for part in ("from numbers.example", str(tmp_path / "Numbers"), "dataset.sample True"):
        assert part in line
    assert "one.pt" not in line
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


def test_a_class_that_unpacks_over_a_hand_placed_file_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(self: Numbers) -> None:
        extract_zip(os.path.join(self.root, "numbers.zip"), self.raw_dir)

    monkeypatch.setattr(Numbers, "download", download)
    raw = place(tmp_path, "one.pt")
    before = (raw / "one.pt").read_bytes()
    archive(tmp_path / "Numbers")
    assert 8 in values(tmp_path)
    assert (raw / "one.pt").read_bytes() == before


def test_a_download_ends_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = archive(tmp_path / "server")
    with server(content[:100], len(content)) as url:
        monkeypatch.setattr(Numbers, "url", url)
        with pytest.raises(DataError, match=rf"the download ended after 100 of {len(content):,} bytes"):
            open_dataset(replace(RECORD, raw=replace(RAW, urls={"numbers.zip": url})), tmp_path)
        with pytest.raises(DataError, match=r"raw files are missing \(fetching them: File is not a zip file\)"):
            open_dataset(RECORD, tmp_path)  # its class does not look at the length
    assert [path.name for path in (tmp_path / "Numbers").iterdir()] == [".lock"]
    with server(content, len(content)) as url:
        monkeypatch.setattr(Numbers, "url", url)
        assert values(tmp_path) == [7, 8]
        again = open_dataset(replace(RECORD, raw=replace(RAW, urls={"numbers.zip": url})), tmp_path / "again")
    assert sorted({float(graph.y) for graph in again.graphs}) == [7, 8]


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


def test_a_damaged_archive_is_named_and_kept_aside(tmp_path: Path) -> None:
    content = archive(tmp_path / "Numbers", damaged=True)
    with pytest.raises(DataError, match=r"numbers\.zip cannot be used .*renamed to numbers\.zip\.damaged-1"):
        open_dataset(RECORD, tmp_path)
    assert (tmp_path / "Numbers" / "numbers.zip.damaged-1").read_bytes() == content[:100]
    assert not (tmp_path / "Numbers" / "numbers.zip").exists()


def test_raw_files_may_lie_behind_a_link(tmp_path: Path) -> None:
    place(tmp_path / "elsewhere")
    (tmp_path / "Numbers").mkdir()
    (tmp_path / "Numbers" / "raw").symlink_to(tmp_path / "elsewhere" / "Numbers" / "raw")
    assert values(tmp_path) == [1, 2]


def test_an_archive_of_something_else_is_named_and_kept_aside(tmp_path: Path) -> None:
    (tmp_path / "Numbers").mkdir()
    with zipfile.ZipFile(tmp_path / "Numbers" / "numbers.zip", "w") as file:
        file.writestr("readme", "nothing else")
    with pytest.raises(DataError, match=r"numbers\.zip cannot be used \(there is no raw/one\.pt and"):
        open_dataset(RECORD, tmp_path)


def test_a_file_that_would_run_code_is_refused_by_name_and_nothing_runs(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "it-ran"),)

    raw = place(tmp_path)
    torch.save(Code(), raw / "two.pt")
    with pytest.raises(DataError, match=r"two\.pt cannot be used \(it asks for posix\.mkdir, which no data needs\)"):
        open_dataset(RECORD, tmp_path)
    assert not (tmp_path / "it-ran").exists()


def test_a_file_with_another_checksum_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = place(tmp_path)
    right = hashlib.sha256((raw / "one.pt").read_bytes()).hexdigest()
    monkeypatch.setitem(SHA256, "Numbers/raw/one.pt", right)
    assert values(tmp_path) == [1, 2]
    monkeypatch.setitem(SHA256, "Numbers/raw/one.pt", "0" * 64)
    torch.save(number(9), raw / "two.pt")  # so that it has to be prepared again
    with pytest.raises(DataError, match=r"one\.pt cannot be used \(its checksum is not the published file's\)"):
        open_dataset(RECORD, tmp_path)


def test_what_was_processed_follows_its_raw_files_and_heals(tmp_path: Path) -> None:
    raw = place(tmp_path)
    assert values(tmp_path) == [1, 2]
    torch.save(number(5), raw / "two.pt")  # of the same size
    assert values(tmp_path) == [1, 5]
    made = tmp_path / "Numbers" / "processed" / "data.pt"
    made.write_bytes(made.read_bytes()[:100])
    with pytest.raises(
        DataError,
        match=r"processed is damaged \(it is not a file of torch.save.* start again, it is made anew",
    ):
        open_dataset(RECORD, tmp_path)
    assert values(tmp_path) == [1, 5]


def test_a_flipped_bit_of_what_was_processed_is_not_believed(tmp_path: Path) -> None:
    place(tmp_path)
    assert values(tmp_path) == [1, 2]
    made = tmp_path / "Numbers" / "processed" / "data.pt"
    content = made.read_bytes()
    at = content.index(number(2).numpy().tobytes())
    made.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(DataError, match=r"processed is damaged \(the checksum of .* is wrong\) and was removed"):
        values(tmp_path)
    assert values(tmp_path) == [1, 2]


def test_processed_files_of_unknown_origin_are_kept_aside_and_not_trusted(tmp_path: Path) -> None:
    place(tmp_path)
    Numbers(str(tmp_path / "Numbers"))  # what torch_geometric itself leaves
    torch.save(number(5), tmp_path / "Numbers" / "raw" / "two.pt")
    assert values(tmp_path) == [1, 5]
    assert (tmp_path / "Numbers" / "processed.old-1" / "data.pt").exists()


def test_a_full_disk_is_not_blamed_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    raw = place(tmp_path)
    monkeypatch.setattr(Numbers, "before_save", staticmethod(full))
    with pytest.raises(DataError, match="preparing Numbers: No space left"):
        open_dataset(RECORD, tmp_path)
    assert sorted(path.name for path in raw.iterdir()) == ["one.pt", "two.pt"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write to .*set dataset.dir to a folder of yours"):
        open_dataset(RECORD, tmp_path / "file")


def start(target: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


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


def test_no_module_of_data_sets_replaces_functions_of_others_or_watches_the_process() -> None:
    folder = Path(raw_files.__file__).parent
    banned = re.compile(r"unittest|addaudithook|sys\.modules|\.extractall = |__traceback__|tb_frame")
    found = {path.name: banned.findall(path.read_text()) for path in folder.rglob("*.py")}
    assert len(found) > 35
    assert {name: words for name, words in found.items() if words} == {}
