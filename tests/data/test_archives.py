"""Archives of data sets: odd entries are named, nothing is written, and the archive is set aside."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, extract_tar, extract_zip

from graphgps_kmip.data import DataError, DatasetRecord, RawFiles, open_dataset
from graphgps_kmip.data.archives import Member, check_members


def graphs_of(home: str, archive: str) -> list[Data]:
    if not Path(home, "processed").exists():
        unpack = extract_zip if archive.endswith("zip") else extract_tar
        unpack(str(Path(home, archive)), str(Path(home, "raw")), log=False)
        Path(home, "processed").mkdir()
    number = int(Path(home, "raw", "size.txt").read_text())
    edges = torch.empty(2, 0, dtype=torch.long)
    return [Data(x=torch.ones(2, 1), edge_index=edges, y=torch.tensor([n % 2])) for n in range(number)]


def record_of(archive: str) -> DatasetRecord:
    raw = RawFiles("mine", ("raw/size.txt",), archives=(archive,))
    load: Callable[[str], Any] = lambda home: graphs_of(home, archive)  # noqa: E731
    return DatasetRecord("mine", load, "classification", title="Mine", raw=raw)


def zipped(root: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> None:
    (root / "mine").mkdir()
    with zipfile.ZipFile(root / "mine" / "mine.zip", "w") as archive:
        for name, content in (("size.txt", b"10"), *entries):
            archive.writestr(name, content)


def special(name: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    return info


ZIPS = {
    "above": ([("../out.txt", b"1")], r"it would write '../out.txt', outside the folder"),
    "far above": ([("a/../../../out.txt", b"1")], "it would write 'a/../../../out.txt', outside"),
    "absolute": ([("/tmp/out.txt", b"1")], "it would write '/tmp/out.txt', outside"),
    "a drive": ([("C:/out.txt", b"1")], "it would write 'C:/out.txt', outside"),
    "backslashes": ([("..\\out.txt", b"1")], r"it would write '.*out.txt', outside"),
    "a link": ([(special("link", stat.S_IFLNK), b"/etc/passwd")], "'link' in it is a link or a device"),
    "a device": ([(special("tape", stat.S_IFCHR), b"")], "'tape' in it is a link or a device"),
    "twice": ([("size.txt", b"11")], "it holds 'size.txt' twice, with different content"),
    "a file for a folder": ([("a", b"1"), ("a/b", b"2")], "'a' in it is a file, and 'a/b' needs a folder there"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("entries", "words"), ZIPS.values(), ids=ZIPS)
def test_an_odd_entry_is_named_and_the_archive_set_aside(entries: Any, words: str, tmp_path: Path) -> None:
    zipped(tmp_path, *entries)
    with pytest.raises(DataError, match=rf"mine.zip cannot be used \({words}.*it now lies in mine.zip.damaged-1"):
        open_dataset(record_of("mine.zip"), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "mine.zip.damaged-1"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_folders_and_equal_entries_are_unpacked(tmp_path: Path) -> None:
    zipped(tmp_path, ("a/", b""), ("a/b", b"1"), ("a/", b""), ("size.txt", b"10"))
    assert len(open_dataset(record_of("mine.zip"), tmp_path)) == 10


TARS = {
    "above": ({"name": "../out.txt"}, "it would write '../out.txt', outside the folder"),
    "a device": ({"name": "tape", "type": tarfile.CHRTYPE}, "'tape' in it is a link or a device"),
    "a pipe": ({"name": "pipe", "type": tarfile.FIFOTYPE}, "'pipe' in it is a link or a device"),
    "a link out": ({"name": "out", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "AbsoluteLinkError"),
}


@pytest.mark.parametrize(("odd", "words"), TARS.values(), ids=TARS)
def test_an_odd_entry_of_a_tar_is_named(odd: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with tarfile.open(tmp_path / "mine" / "mine.tar.gz", "w:gz") as archive:
        for facts in ({"name": "size.txt", "size": 2}, odd):
            info = tarfile.TarInfo()
            for key, value in facts.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(b"10") if info.size else None)
    with pytest.raises(DataError, match=rf"mine.tar.gz cannot be used \({words}"):
        open_dataset(record_of("mine.tar.gz"), tmp_path)
    assert not (tmp_path / "mine" / "raw").exists()


def member(size: int) -> Member:
    return Member("a", size, False, True, size)


def test_an_archive_that_unpacks_to_far_more_than_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"its 1,000 bytes would unpack to 745\.1 GiB, which no data does"):
        check_members([member(800 * 10**9)], tmp_path, packed=1_000)


def test_an_archive_that_the_disk_has_no_space_for_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1))
    zipped(tmp_path)
    with pytest.raises(DataError, match="unpacking needs 2 bytes, and 1 bytes are free: free space there, or set"):
        open_dataset(record_of("mine.zip"), tmp_path)
    assert (tmp_path / "mine" / "mine.zip").exists(), "it is not the archive's fault"
