"""Raw files of data sets: found, downloaded, checked, processed by loading classes, and moved into place at once.

The class works in a hidden folder of links to the raw files; what it made is renamed into place, with a stamp of those.
Each raw file is read first: a damaged one is named and renamed, and one that holds code is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

from tqdm.utils import CallbackIOWrapper

from graphgps_kmip.common.atomic_write import free_name
from graphgps_kmip.common.file_lock import locked
from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.common.torch_files import check_archive
from graphgps_kmip.data.dataset_record import DatasetRecord, RawFiles
from graphgps_kmip.data.file_errors import DamagedFile, damage_reason, is_damage, naming_disk, reading
from graphgps_kmip.data.safe_pickle import holds_objects, load_pickle, load_torch, weights_only
from graphgps_kmip.errors import DataError, UnsafeFile, UserError

log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")
TIMEOUT = 30.0  # seconds without an answer
CHUNK = 2**20
HIDDEN = ".preparing"
STAMP = "prepared.json"
LOOKED_INTO = 64  # files whose ends are hashed for the stamp; of all of them the sizes count
END = 4096  # bytes at either end of such a file


def prepared(record: DatasetRecord, root: str | Path, load: Callable[[str], Loaded]) -> Loaded:
    """Return ``load(home)`` once the raw files of a data set are complete and have been processed.

    Args:
        record: with its ``raw`` files.
        root: folder of all data sets (``dataset.dir``).
        load: makes the data set from its root folder, processing the raw files where they are not yet.
    """
    raw, folder = record.raw, raw_folder(record, root)
    with locked(folder / ".lock", record.title), naming_disk(f"preparing {record.title}", folder):
        try:
            if _missing(folder, raw):
                _fetch(record, root)
            if not _is_current(folder, raw):
                _check(record, folder)
                _process(record, root, load)
            return _load_processed(record, root, load)
        except DamagedFile as error:
            raise DataError(_set_aside(record, error.path, error.reason)) from error


def raw_folder(record: DatasetRecord, root: str | Path) -> Path:
    """Return the folder of a data set below ``dataset.dir``."""
    return Path(root).expanduser().absolute() / record.raw.folder


def processed_folder(record: DatasetRecord, root: str | Path) -> Path:
    """Return the folder of what was made of a data set's raw files."""
    return raw_folder(record, root) / record.raw.processed


def at_hand(record: DatasetRecord, root: str | Path) -> bool:
    """Return whether a data set can be loaded without the network: its raw files, or archives of them, are on disk."""
    if record.raw is None:
        return True
    folder, archives = raw_folder(record, root), record.raw.archives
    return any(names and all(_is_there(folder / name) for name in names) for names in (record.raw.files, archives))


def missing_line(record: DatasetRecord, root: str | Path, reason: str, missing: Sequence[str] = ()) -> str:
    """Return the line for raw files that are not on disk, by default all of them: where they go and come from."""
    raw, folder = record.raw, raw_folder(record, root)
    missing = missing or _missing(folder, raw)
    names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    archives = f" (or {' and '.join(raw.archives)} as downloaded)" if raw.archives else ""
    return (
        f"{record.title}: raw files are missing ({reason}): place {names}{archives}{_name_page(record)} into {folder}, "
        f"or set dataset.sample True, which runs without them"
    )


def _name_page(record: DatasetRecord) -> str:
    return f" from {record.source.page}" if record.source and record.source.page else ""


def _set_aside(record: DatasetRecord, path: Path, reason: str) -> str:
    """Rename a file that cannot be used, and return the line that says so."""
    line = f"{record.title}: {path} cannot be used ({reason})"
    if not path.is_file():
        return f"{line}: put it{_name_page(record)} there again"
    aside = free_name(path, "damaged")
    os.replace(path, aside)
    return f"{line}; it was renamed to {aside.name}: put a good copy{_name_page(record)} there"


def _missing(folder: Path, raw: RawFiles) -> list[str]:
    return [name for name in raw.files if not _is_there(folder / name)]


def _is_there(path: Path) -> bool:
    return path.is_file() or any(inner.is_file() for inner in path.rglob("*"))


class NetworkError(Exception):
    """Something could not be downloaded."""


def _fetch(record: DatasetRecord, root: str | Path) -> None:
    """Put missing raw files into place: from archives that are on disk, else from their addresses."""
    folder, raw = raw_folder(record, root), record.raw
    part = _make_empty(folder / HIDDEN)
    log.info("%s: fetching its raw files", record.title)
    reason = "no address of them is known"
    try:
        for name in raw.archives:
            if (folder / name).is_file():
                _take(folder / name, part, folder, raw)
        for name, url in raw.urls.items():
            if name in (missing := _missing(folder, raw)):
                _download(url, part / name)
                _move(part, folder, [name])
            elif name in raw.archives and any(other not in raw.urls for other in missing):
                _download(url, part / name)
                try:
                    _take(part / name, part, folder, raw)
                except DamagedFile as error:
                    raise NetworkError(f"{url}: {error.reason}") from error
            reason = "what was found does not hold them"
    except NetworkError as error:
        raise DataError(missing_line(record, root, f"fetching them: {error}")) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if _missing(folder, raw):
        raise DataError(missing_line(record, root, reason))


def _download(url: str, path: Path) -> None:
    log.info("downloading %s", url)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urlopen(url, timeout=TIMEOUT) as response, open(path, "wb") as file:
            expected = int(response.headers.get("Content-Length") or 0)
            with terminal_bar(desc=path.name, total=expected or None, unit="B", unit_scale=True) as bar:
                shutil.copyfileobj(response, CallbackIOWrapper(bar.update, file, "write"), CHUNK)
            if file.tell() < expected:
                raise NetworkError(f"the download ended after {file.tell():,} of {expected:,} bytes")
    except (URLError, HTTPException, ConnectionError, TimeoutError) as error:
        text = " ".join(str(getattr(error, "reason", None) or error).split())
        raise NetworkError(text[:120] or type(error).__name__) from error


def _take(archive: Path, part: Path, folder: Path, raw: RawFiles) -> None:
    missing = _missing(folder, raw)
    if same := [name for name in missing if PurePath(name).name == archive.name]:
        (part / same[0]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(archive, part / same[0])
    elif missing:
        with reading(archive):
            unpack(archive, missing, part, raw.inside)
    _move(part, folder, missing)


def unpack(archive: Path, names: Sequence[str], folder: Path, inside: str = "") -> None:
    """Move the files of a zip, a tar or a packed file ``a.txt.xz`` that have these names into a folder.

    ``inside`` is the archive's folder that holds them. A file ``raw/a.txt`` is the ``raw/a.txt`` or ``a.txt`` that is
    least deep. Raises UnsafeFile if it holds none, and what the readers do if it is damaged or leads outside.
    """
    with TemporaryDirectory(dir=folder) as place:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as content:
                content.extractall(place)
        elif archive.suffix == ".xz" and not archive.name.endswith(".tar.xz"):
            with lzma.open(archive) as source, open(Path(place, archive.stem), "wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
        else:
            with tarfile.open(archive) as content:
                content.extractall(place, filter="data")
        unpacked = {
            name: [path for form in (name, name.removeprefix("raw/")) for path in Path(place, inside).rglob(form)]
            for name in names
        }
        if not any(unpacked.values()):
            raise UnsafeFile(f"there is no {inside or ' and no '.join(names[:3])} in it")
        for name, paths in unpacked.items():
            if paths:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(min(paths, key=lambda path: (len(path.parts), path)), folder / name)


def _move(part: Path, folder: Path, names: Sequence[str]) -> None:
    """Rename files or folders that are complete into place, unless there is one of that name."""
    for name in names:
        if (part / name).exists() and not _is_there(folder / name):
            shutil.rmtree(folder / name, ignore_errors=True)  # without a file in it
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(part / name, folder / name)


def _make_empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # links and halves that a killed process left
    folder.mkdir(parents=True)
    return folder


def _check(record: DatasetRecord, folder: Path) -> None:
    files = {folder / name for name in record.raw.files if name not in record.raw.unread}
    for path in _raw_files(folder, record.raw):
        if files.isdisjoint((path, *path.parents)):
            continue  # something else that was put there
        with reading(path):
            _check_content(path)


TEXT = (".txt", ".index", ".off", ".edgelist", ".gz", ".h5", ".mat", ".json")  # whose readers run no code
PICKLES = (".pickle", ".pkl")  # and Planetoid's files "ind.", and what begins as pickles do


def _check_content(path: Path) -> None:
    if path.suffix == ".pt":
        load_torch(path)
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    if holds_objects(file):
                        load_pickle(file)
            if name := archive.testzip():
                raise UnsafeFile(f"the checksum of {name} in it is wrong")
    elif path.suffix not in TEXT:
        with open(path, "rb") as file:
            if path.suffix == ".npy" and holds_objects(file):
                load_pickle(file)
            elif path.suffix in PICKLES or path.name.startswith("ind.") or file.read(1) == b"\x80":
                file.seek(0)
                load_pickle(file)


def file_sum(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _process(record: DatasetRecord, root: str | Path, load: Callable[[str], Any]) -> None:
    folder, raw = raw_folder(record, root), record.raw
    stage_home = _make_empty(folder / HIDDEN)
    stage = stage_home / raw.base
    stage.mkdir(parents=True, exist_ok=True)
    for path in _raw_files(folder, raw):
        link = stage / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    log.info("%s: preparing it from its raw files", record.title)
    try:
        with weights_only():
            load(str(stage_home))
        _move_into_place(folder, stage, raw)
    except DamagedFile as error:  # by a link to it
        path = folder / error.path.relative_to(stage) if error.path.is_relative_to(stage) else error.path
        raise DamagedFile(path, error.reason) from error
    except FileNotFoundError as error:
        if not str(error.filename).startswith(str(stage)):
            raise
        absent = os.path.relpath(error.filename, stage)
        reason = f"the other files ask for {absent}"
        raise DataError(missing_line(record, root, reason, [absent])) from error
    except Exception as error:
        if not _is_unnamed_damage(error):
            raise
        raise DataError(
            f"{record.title}: its raw files in {folder} cannot be used together ({damage_reason(error)}): put good "
            f"copies of {', '.join(raw.files[:8])} there"
        ) from error
    finally:
        shutil.rmtree(stage_home, ignore_errors=True)


def _load_processed(record: DatasetRecord, root: str | Path, load: Callable[[str], Loaded]) -> Loaded:
    processed = processed_folder(record, root)
    try:
        for file in processed.rglob("*.pt"):
            check_archive(file)
        with weights_only():
            return load(str(Path(root).expanduser().absolute() / record.raw.home))
    except Exception as error:
        if not _is_unnamed_damage(error) and not isinstance(error, FileNotFoundError):
            raise
        shutil.rmtree(processed, ignore_errors=True)
        raise DataError(
            f"{record.title}: {processed} is damaged ({damage_reason(error)}) and was removed: start again"
        ) from error


def _is_unnamed_damage(error: Exception) -> bool:
    return is_damage(error) and (not isinstance(error, UserError) or isinstance(error, UnsafeFile))


def _raw_files(folder: Path, raw: RawFiles) -> list[Path]:
    paths = []
    # left out at any depth: sets that share raw files are side by side (ZINC: subset, full)
    processed = Path(raw.processed).name
    for place, names, files in os.walk(folder, followlinks=True):  # large data are often a link
        names[:] = sorted(name for name in names if not name.startswith((".", processed)))
        paths += [Path(place, name) for name in sorted(files) if not name.startswith(".") and ".damaged-" not in name]
    return paths


def _move_into_place(folder: Path, stage: Path, raw: RawFiles) -> None:
    processed, final = stage / raw.processed, folder / raw.processed
    processed.mkdir(parents=True, exist_ok=True)  # a class without a processing step
    (processed / STAMP).write_text(json.dumps({"made_from": _fingerprint(folder, raw)}) + "\n")
    if (final / STAMP).exists():
        os.replace(final, folder / HIDDEN / "replaced")  # removed with the hidden folder
    elif final.exists():
        aside = free_name(final, "old")
        os.replace(final, aside)
        log.warning("%s was not made by this package and is not used; it was renamed to %s", final, aside)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(processed, final)


def _is_current(folder: Path, raw: RawFiles) -> bool:
    try:
        return json.loads((folder / raw.processed / STAMP).read_text())["made_from"] == _fingerprint(folder, raw)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _fingerprint(folder: Path, raw: RawFiles) -> str:
    # Archives, once unpacked, may be deleted.
    files = [path for path in _raw_files(folder, raw) if str(path.relative_to(folder)) not in raw.archives]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
    for path in files[:: max(1, len(files) // LOOKED_INTO)]:
        with open(path, "rb") as file:
            digest.update(file.read(END))
            file.seek(max(0, path.stat().st_size - END))
            digest.update(file.read(END))
    return digest.hexdigest()
