"""Archives of data sets: only what is wanted is unpacked, odd entries of it are named, and the archive is renamed."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetRecord, RawFiles, open_dataset
from graphgps_kmip.data.downloads import _check_size, unpack
from graphgps_kmip.errors import UnsafeFile


def graphs_of(home: str) -> list[Data]:
    number = int(Path(home, "raw", "size.txt").read_text())
    edges = torch.empty(2, 0, dtype=torch.long)
    return [Data(x=torch.ones(2, 1), edge_index=edges, y=torch.tensor([n % 2])) for n in range(number)]


def record_of(archive: str) -> DatasetRecord:
    raw = RawFiles("mine", ("raw/size.txt", "raw/more"), archives=(archive,))
    return DatasetRecord("mine", graphs_of, "classification", title="Mine", raw=raw)


def zipped(root: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> None:
    (root / "mine").mkdir()
    with zipfile.ZipFile(root / "mine" / "mine.zip", "w") as archive:
        for name, content in (("size.txt", b"10"), ("more/a", b"1"), *entries):
            archive.writestr(name, content)


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    return info


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


ZIPS = {
    "above": ([("more/../../out.txt", b"1")], "it would write 'more/../../out.txt', outside the folder"),
    "far above": ([("../more/b", b"1"), ("more/../../../out", b"1")], "it would write 'more/../../../out', outside"),
    "backslashes": ([("more\\..\\..\\out.txt", b"1")], r"it would write '.*out.txt', outside"),
    "a link": ([(special("more/link", stat.S_IFLNK), b"/etc/passwd")], "'more/link' in it is a link or a device"),
    "a device": ([(special("more/tape", stat.S_IFCHR), b"")], "'more/tape' in it is a link or a device"),
    "twice": ([("size.txt", b"11")], "it holds 'size.txt' twice, with different content"),
    "a file for a folder": ([("more/a/b", b"2")], "'raw/more/a' in it is a file, and 'raw/more/a/b' needs a folder"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("entries", "words"), ZIPS.values(), ids=ZIPS)
def test_an_odd_entry_is_named_and_the_archive_set_aside(entries: Any, words: str, tmp_path: Path) -> None:
    zipped(tmp_path, *entries)
    with pytest.raises(DataError, match=rf"mine.zip cannot be used \({words}.*it was renamed to mine.zip.damaged-1"):
        open_dataset(record_of("mine.zip"), tmp_path)
    assert files(tmp_path) == ["mine/.lock", "mine/mine.zip.damaged-1"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_is_not_wanted_is_not_written_wherever_it_would_lead(tmp_path: Path) -> None:
    others = ["../out.txt", "/tmp/out.txt", "C:/out.txt", "a", "a/b", "__MACOSX/more/._a"]
    zipped(tmp_path, *((name, b"1") for name in others), (special("link", stat.S_IFLNK), b"/etc/passwd"))
    unpack(tmp_path / "mine" / "mine.zip", ["raw/size.txt", "raw/more"], tmp_path / "here")
    assert files(tmp_path) == ["here/raw/more/a", "here/raw/size.txt", "mine/mine.zip"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_folders_and_equal_entries_are_unpacked(tmp_path: Path) -> None:
    zipped(tmp_path, ("more/c/", b""), ("more/c/b", b"1"), ("more/c/", b""), ("size.txt", b"10"))
    assert len(open_dataset(record_of("mine.zip"), tmp_path)) == 10
    assert (tmp_path / "mine" / "raw" / "more" / "c" / "b").read_bytes() == b"1"


def test_of_two_files_of_a_name_the_least_deep_one_is_taken(tmp_path: Path) -> None:
    zipped(tmp_path, ("deep/deeper/more/b", b"2"), ("deep/size.txt", b"11"))
    unpack(tmp_path / "mine" / "mine.zip", ["raw/size.txt", "raw/more"], tmp_path)
    assert files(tmp_path / "raw") == ["more/a", "size.txt"]
    assert (tmp_path / "raw" / "size.txt").read_bytes() == b"10"


TARS = {
    "above": ({"name": "more/../../out.txt"}, "it would write 'more/../../out.txt', outside the folder"),
    "a device": ({"name": "more/tape", "type": tarfile.CHRTYPE}, "'more/tape' in it is a link or a device"),
    "a pipe": ({"name": "more/pipe", "type": tarfile.FIFOTYPE}, "'more/pipe' in it is a link or a device"),
    "a link": ({"name": "more/out", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "'more/out' in it is a link"),
}


@pytest.mark.parametrize(("odd", "words"), TARS.values(), ids=TARS)
def test_an_odd_entry_of_a_tar_is_named(odd: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with tarfile.open(tmp_path / "mine" / "mine.tar.gz", "w:gz") as archive:
        for facts in ({"name": "size.txt", "size": 2}, {"name": "more/a", "size": 2}, odd):
            info = tarfile.TarInfo()
            for key, value in facts.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(b"10") if info.size else None)
    with pytest.raises(DataError, match=rf"mine.tar.gz cannot be used \({words}"):
        open_dataset(record_of("mine.tar.gz"), tmp_path)
    assert not (tmp_path / "mine" / "raw").exists()


def test_an_archive_that_unpacks_to_far_more_than_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeFile, match=r"its 1,000 bytes would unpack to 745\.1 GiB, which no data does"):
        _check_size(800 * 10**9, tmp_path, packed=1_000)


def test_an_archive_that_the_disk_has_no_space_for_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    zipped(tmp_path)
    with pytest.raises(DataError, match="unpacking needs 3 bytes, and 1 bytes are free: free space there, or set"):
        open_dataset(record_of("mine.zip"), tmp_path)
    assert (tmp_path / "mine" / "mine.zip").exists(), "it is not the archive's fault"
