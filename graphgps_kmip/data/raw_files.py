"""From raw files to a data set that can be trusted: found, fetched, checked, processed, and moved into place at once.

A loading class of torch_geometric or ogb downloads into its root and writes what it makes of it beside, in place: some
delete hand-placed files first, a kill leaves half a file that the next start believes, and two processes write the same
file. So the class works in a hidden folder that sees the raw files as links; what it made is renamed into place when it
is complete, with a stamp that says which raw files it was made from. One process works, others wait.

Checksums of published raw files, as far as we have seen the files: SHA-256 by path below ``dataset.dir``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from graphgps_kmip.common.file_lock import locked
from graphgps_kmip.data.archives import checked_archives
from graphgps_kmip.data.dataset_record import DatasetRecord, RawFiles
from graphgps_kmip.data.disk import naming_disk
from graphgps_kmip.data.downloads import NetworkError, fetching, neither_fetching_nor_processing
from graphgps_kmip.data.file_errors import free_name, missing_files, naming_damage, set_aside
from graphgps_kmip.data.unpickle import safe_unpickling
from graphgps_kmip.errors import DataError

# ruff: noqa: E501 (a sum is a line)

SHA256 = {
    "HeterophilousGraphDataset/minesweeper/raw/minesweeper.npz": "e664c8dacf1e8ac466c2c09ed4b237bd2c5541f47a6eae9c6092cb87f16412b3",
    "HeterophilousGraphDataset/tolokers/raw/tolokers.npz": "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
    "Planetoid/CiteSeer/raw/ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "Planetoid/CiteSeer/raw/ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "Planetoid/CiteSeer/raw/ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "Planetoid/CiteSeer/raw/ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "Planetoid/CiteSeer/raw/ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "Planetoid/CiteSeer/raw/ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "Planetoid/CiteSeer/raw/ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "Planetoid/CiteSeer/raw/ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "Planetoid/Cora/raw/ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "Planetoid/Cora/raw/ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "Planetoid/Cora/raw/ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "Planetoid/Cora/raw/ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "Planetoid/Cora/raw/ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "Planetoid/Cora/raw/ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "Planetoid/Cora/raw/ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "Planetoid/Cora/raw/ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}


log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")
STAMP = "prepared.json"
LOOKED_INTO = 64  # files whose ends are hashed for the stamp; of all of them the sizes count
END = 4096  # bytes at either end of such a file


def prepared(record: DatasetRecord, root: str | Path, load: Callable[[str], Loaded]) -> Loaded:
    """Return ``load(home)`` once the raw files of a data set are there and have been processed.

    Args:
        record: with its ``raw`` files.
        root: folder of all data sets (``dataset.dir``).
        load: makes the data set from its root folder, downloading and processing where its class does.

    Raises:
        DataError: files are missing and cannot be fetched, damaged, or hold code.
    """
    raw = record.raw
    folder = Path(root).expanduser().absolute() / raw.folder
    home = folder.parents[len(Path(raw.base).parts) - 1] if raw.base else folder
    with locked(folder / ".lock", record.title), naming_disk(f"preparing {record.title}", folder):
        if not _is_current(folder, raw):
            _check_sums(record, folder)
            _prepare(record, folder, load)
        with safe_unpickling(), neither_fetching_nor_processing(), naming_damage(record, folder):
            return load(str(home))


def at_hand(record: DatasetRecord, root: str | Path) -> bool:
    """Tell whether a data set can be loaded without the network: its raw files, or archives of them, are there."""
    if record.raw is None:
        return True
    folder = Path(root).expanduser().absolute() / record.raw.folder
    archives = record.raw.archives
    return any(names and all((folder / name).exists() for name in names) for names in (record.raw.files, archives))


def missing_line(record: DatasetRecord, root: str | Path, reason: str) -> str:
    """Return the line for a data set whose raw files are not at hand: which, and where they go.

    Args:
        record: of the data set, with raw files.
        root: folder of all data sets (``dataset.dir``).
        reason: why they are not there.
    """
    folder = Path(root).expanduser().absolute() / record.raw.folder
    missing = [name for name in record.raw.files if not (folder / name).exists()]
    return missing_files(record, folder, missing, reason)


def processed_folder(record: DatasetRecord, root: str | Path) -> Path:
    """Return where what was made of a data set's raw files lies."""
    return Path(root).expanduser().absolute() / record.raw.folder / record.raw.processed


def _prepare(record: DatasetRecord, folder: Path, load: Callable[[str], Any]) -> None:
    raw = record.raw
    stage_home = folder / ".preparing"
    shutil.rmtree(stage_home, ignore_errors=True)  # links and halves that a killed process left
    stage = stage_home / raw.base
    _link(folder, stage, raw)
    missing = [name for name in raw.files if not (stage / name).exists()]
    log.info("%s: %s", record.title, "fetching its raw files" if missing else "preparing it from its raw files")
    try:
        with (
            safe_unpickling(),
            fetching(_offer_archives(folder, stage_home, raw)),
            checked_archives(),
            naming_damage(record, folder, stage),
        ):
            load(str(stage_home))
        _move_into_place(folder, stage, raw)
    except NetworkError as error:
        raise DataError(missing_files(record, folder, missing, f"fetching them: {error}")) from error
    finally:
        shutil.rmtree(stage_home, ignore_errors=True)


def _link(folder: Path, stage: Path, raw: RawFiles) -> None:
    for path in _raw_files(folder, raw):
        link = stage / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    stage.mkdir(parents=True, exist_ok=True)


def _offer_archives(folder: Path, stage_home: Path, raw: RawFiles) -> dict[str, Path]:
    """Link archives at hand to wherever a class may want to download them; return them by name."""
    found = {name: folder / name for name in raw.archives if (folder / name).is_file()}
    for name, path in found.items():
        for place in {stage_home, stage_home / raw.base, stage_home / raw.base / "raw"}:
            place.mkdir(parents=True, exist_ok=True)
            if not (place / name).is_symlink():
                (place / name).symlink_to(path)
    return found


def _raw_files(folder: Path, raw: RawFiles) -> list[Path]:
    """Return every file of the data set that is not made by us or set aside, in a fixed order."""
    found = []
    made = Path(raw.processed).name  # at any depth: sets that share raw files lie side by side (ZINC: subset, full)
    for place, names, files in os.walk(folder, followlinks=True):  # big data often lies behind a link
        names[:] = sorted(name for name in names if not name.startswith((".", made)))
        found += [Path(place, name) for name in sorted(files) if not name.startswith(".") and ".damaged-" not in name]
    return found


def _move_into_place(folder: Path, stage: Path, raw: RawFiles) -> None:
    """Move fetched files, then what was made of them; the stamp is inside, so both appear at once."""
    for path in _raw_files(stage, raw):
        target = folder / path.relative_to(stage)
        if not path.is_symlink() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    made, final = stage / raw.processed, folder / raw.processed
    made.mkdir(parents=True, exist_ok=True)  # a class without a processing step
    (made / STAMP).write_text(json.dumps({"made_from": _fingerprint(folder, raw)}) + "\n")
    if final.exists():
        stamped = (final / STAMP).exists()
        aside = folder / ".replaced" if stamped else free_name(final, "old")
        shutil.rmtree(folder / ".replaced", ignore_errors=True)  # of a process that was killed here
        os.replace(final, aside)
        if not stamped:
            log.warning("%s was not made by this package and is not used; it now lies in %s", final, aside)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(made, final)
    shutil.rmtree(folder / ".replaced", ignore_errors=True)


def _is_current(folder: Path, raw: RawFiles) -> bool:
    try:
        stamp = json.loads((folder / raw.processed / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(stamp, dict) and stamp.get("made_from") == _fingerprint(folder, raw)


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


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_sums(record: DatasetRecord, folder: Path) -> None:
    for name in record.raw.files:
        path, wanted = folder / name, SHA256.get(f"{record.raw.folder}/{name}")
        if wanted and path.is_file() and _sum(path) != wanted:
            raise DataError(set_aside(record, folder, path, "its checksum is not the published file's"))
