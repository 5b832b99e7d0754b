"""Downloads of raw files, and unpacking of archives: whole and of the expected content, or one error."""

from __future__ import annotations

import hashlib
import logging
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.request import urlopen

from graphgps_kmip.data.graph_checks import GIB, size_text
from graphgps_kmip.errors import DataError, UnsafeFile

log = logging.getLogger(__name__)
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 2**20
MAX_RATIO = 200  # unpacked to packed size; text of graphs compresses to a twentieth
SMALL = 10 * GIB  # what may be unpacked whatever the ratio is


class NetworkError(Exception):
    """Something could not be downloaded."""


def network_reason(error: BaseException) -> str:
    """Return what an error of a download says, in one line."""
    text = " ".join(str(getattr(error, "reason", None) or error).split())
    return text[:120] or type(error).__name__


def download(url: str, path: Path) -> None:
    """Write the content of an address to a file, which is complete or not there.

    Raises:
        NetworkError: anything that goes wrong between here and the server.
    """
    log.info("downloading %s", url)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with _asked(lambda: urlopen(url, timeout=TIMEOUT)) as response, open(part, "wb") as file:
        expected = int(response.headers.get("Content-Length") or 0)
        while chunk := _asked(lambda: response.read(CHUNK)):
            file.write(chunk)
        if file.tell() < expected:
            raise NetworkError(f"the download ended after {file.tell():,} of {expected:,} bytes")
    os.replace(part, path)


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _asked(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (OSError, HTTPException, ValueError) as error:
        raise NetworkError(network_reason(error)) from error


class Member(NamedTuple):
    """One entry of an archive.

    Args:
        parts: of its path.
        size: bytes, unpacked.
        is_folder: it is a directory.
        is_plain: it is neither a link nor a device.
        content: equal for entries of equal content.
        open: opens it for reading.
    """

    parts: tuple[str, ...]
    size: int
    is_folder: bool
    is_plain: bool
    content: Any
    open: Callable[[], BinaryIO]


def unpack(archive: Path, wanted: Sequence[str], folder: Path, inside: str = "") -> None:
    """Write the wanted files of an archive into a folder; all else in the archive is left out.

    A file ``raw/a.txt`` is taken from the entry ``raw/a.txt`` or ``a.txt`` that is least deep in the archive's folders,
    a folder with everything in it.

    Args:
        archive: a zip, a tar of any compression, or one file packed by xz, ``a.txt.xz``.
        wanted: paths of files or folders, relative to ``folder``.
        folder: is made.
        inside (default: any): folder of the archive that holds them.

    Raises:
        UnsafeFile: an entry leads outside the folder, is a link or a device, occurs twice with different content, or
            is a file where another entry needs a folder; the archive holds far more than data does, or nothing wanted.
        DataError: there is not enough space for it.
        BadZipFile, TarError, EOFError, zlib.error, LZMAError: the archive is damaged.
    """
    with _members(archive) as members:
        chosen = _chosen([one for one in members if one.parts[:1] == (inside,) or not inside], wanted)
        if not chosen:
            raise UnsafeFile(f"there is no {inside or ' and no '.join(wanted[:3])} in it")
        _check_size(sum(member.size for member in chosen.values()), folder, archive.stat().st_size)
        for name, member in chosen.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file, CHUNK)


@contextmanager
def _members(path: Path) -> Iterator[list[Member]]:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            yield [_of_zip(archive, info) for info in archive.infolist()]
    elif path.suffix == ".xz" and not path.name.endswith(".tar.xz"):
        size = _unpacked_size(path)
        yield [Member((path.stem,), size, False, True, size, lambda: lzma.open(path))]
    else:
        with tarfile.open(path) as archive:
            yield [_of_tar(archive, info) for info in archive.getmembers()]


def _unpacked_size(path: Path) -> int:
    """Return the size of a file packed by xz, and of one that is not there to its end raise EOFError."""
    size = 0
    with lzma.open(path) as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
    return size


def _of_zip(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was not made on a POSIX system
    plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
    content = info.file_size, info.CRC
    return Member(_parts(info.filename), info.file_size, info.is_dir(), plain, content, lambda: archive.open(info))


def _of_tar(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Member:
    plain = info.isfile() or info.isdir()
    return Member(_parts(info.name), info.size, info.isdir(), plain, info.size, lambda: archive.extractfile(info))


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.replace("\\", "/")).parts


def _chosen(members: list[Member], wanted: Sequence[str]) -> dict[str, Member]:
    """Return the entries to unpack by the names that they get."""
    chosen: dict[str, Member] = {}
    for name in wanted:
        place = _place(members, _parts(name))
        for member in members if place else ():
            if member.parts[: len(place)] == place and not member.is_folder:
                inner = "/".join((name, *member.parts[len(place) :]))
                _check_entry(member, inner, chosen)
                chosen[inner] = member
    for name in chosen:
        if file := next((str(parent) for parent in PurePosixPath(name).parents if str(parent) in chosen), ""):
            raise UnsafeFile(f"{file[:80]!r} in it is a file, and {name[:80]!r} needs a folder there")
    return chosen


def _place(members: list[Member], parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path in the archive of what ``parts`` names; () if it is not there."""
    forms = (parts, parts[1:]) if parts[0] == "raw" else (parts,)
    found = {
        member.parts[: first + len(form)]
        for member in members
        for form in forms
        for first in range(len(member.parts) - len(form) + 1)
        if member.parts[first : first + len(form)] == form
    }
    return min(found, key=lambda place: (len(place), place), default=())


def _check_entry(member: Member, name: str, chosen: dict[str, Member]) -> None:
    shown = "/".join(member.parts)[:80]
    if ".." in member.parts:
        raise UnsafeFile(f"it would write {shown!r}, outside the folder of the data set")
    if not member.is_plain:
        raise UnsafeFile(f"{shown!r} in it is a link or a device, which no data needs")
    if name in chosen and chosen[name].content != member.content:
        raise UnsafeFile(f"it holds {shown!r} twice, with different content")


def _check_size(total: int, target: Path, packed: int) -> None:
    if total > max(SMALL, MAX_RATIO * packed):
        raise UnsafeFile(f"its {size_text(packed)} would unpack to {size_text(total)}, which no data does")
    folder = next(place for place in (target, *target.absolute().parents) if place.exists())
    if total > (free := shutil.disk_usage(folder).free):
        raise DataError(
            f"{folder}: unpacking needs {size_text(total)}, and {size_text(free)} are free: free space there, or set "
            "dataset.dir to a folder on another disk"
        )
