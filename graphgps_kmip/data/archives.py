"""Archives of data sets: what they would unpack is looked at before anything is written."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from graphgps_kmip.data.graph_checks import GIB, size_text
from graphgps_kmip.errors import DataError, UnsafeFile

BOMB = 200  # times its own size; text of graphs compresses to a twentieth
SMALL = 10 * GIB  # what may be unpacked whatever the ratio is

_ZIP, _TAR = zipfile.ZipFile.extractall, tarfile.TarFile.extractall


class Member(NamedTuple):
    """One entry of an archive."""

    name: str
    size: int
    is_folder: bool
    is_plain: bool  # not a device, nor in a zip a link
    content: Any  # equal for entries of equal content


@contextmanager
def checked_archives() -> Iterator[None]:
    """Check archives before loading classes unpack them, process-wide.

    Raises (inside):
        UnsafeFile: an entry leads outside the folder, is a link or a device, occurs twice with different content, or
            is a file where another entry needs a folder; or the archive unpacks to far more than data does.
        DataError: there is not enough space for it.
    """

    def of_zip(archive: zipfile.ZipFile, path: Any = None, members: Any = None, pwd: bytes | None = None) -> None:
        check_members(map(_of_zip, archive.infolist()), Path(path or "."), _size(archive.filename))
        _ZIP(archive, path, members, pwd)

    def of_tar(archive: tarfile.TarFile, path: Any = ".", members: Any = None, **options: Any) -> None:
        check_members(map(_of_tar, archive.getmembers()), Path(path), _size(archive.name))
        _TAR(archive, path, members, **{"filter": "data", **options})

    before = zipfile.ZipFile.extractall, tarfile.TarFile.extractall  # the loading classes offer no place to ask first
    zipfile.ZipFile.extractall, tarfile.TarFile.extractall = of_zip, of_tar
    try:
        yield
    finally:
        zipfile.ZipFile.extractall, tarfile.TarFile.extractall = before


def check_members(members: Iterable[Member], target: Path, packed: int) -> None:
    """Raise UnsafeFile or DataError, as `checked_archives` says.

    Args:
        members: entries of the archive.
        target: folder that it is to be unpacked into.
        packed: bytes of the archive.
    """
    seen: dict[str, Member] = {}
    for member in members:
        path = PurePosixPath(member.name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or PureWindowsPath(member.name).drive:
            raise UnsafeFile(f"it would write {member.name[:80]!r}, outside the folder of the data set")
        if not member.is_plain:
            raise UnsafeFile(f"{member.name[:80]!r} in it is a link or a device, which no data needs")
        before = seen.setdefault(str(path), member)
        if before.content != member.content and not (before.is_folder and member.is_folder):
            raise UnsafeFile(f"it holds {member.name[:80]!r} twice, with different content")
    for path in seen:
        for parent in PurePosixPath(path).parents:
            if str(parent) in seen and not seen[str(parent)].is_folder:
                raise UnsafeFile(f"{str(parent)[:80]!r} in it is a file, and {path[:80]!r} needs a folder there")
    _check_size(sum(member.size for member in seen.values()), target, packed)


def _check_size(total: int, target: Path, packed: int) -> None:
    if total > max(SMALL, BOMB * packed):
        raise UnsafeFile(f"its {size_text(packed)} would unpack to {size_text(total)}, which no data does")
    folder = next(place for place in (target, *target.absolute().parents) if place.exists())
    if total > (free := shutil.disk_usage(folder).free):
        raise DataError(
            f"{folder}: unpacking needs {size_text(total)}, and {size_text(free)} are free: free space there, or set "
            "dataset.dir to a folder on another disk"
        )


def _of_zip(info: zipfile.ZipInfo) -> Member:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made on a POSIX system
    plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
    return Member(info.filename, info.file_size, info.is_dir(), plain, (info.file_size, info.CRC))


def _of_tar(info: tarfile.TarInfo) -> Member:
    plain = not info.isdev()  # where a link may lead is the filter's to say
    return Member(info.name, info.size, info.isdir(), plain, info.size)


def _size(name: Any) -> int:
    return os.path.getsize(name) if name and os.path.exists(name) else 0
