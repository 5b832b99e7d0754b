"""The loading classes of ogb, kept from asking: the network for newer releases, and people for leave to delete."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from unittest.mock import patch

from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import RawFiles, Source
from graphgps_kmip.errors import DataError, InputError

if TYPE_CHECKING:
    from torch_geometric.data import InMemoryDataset

HOME = "ogb"
CLASSES = {
    "graph": "PygGraphPropPredDataset",
    "node": "PygNodePropPredDataset",
    "link": "PygLinkPropPredDataset",
}
MARKER = "RELEASE_v1.txt"  # empty; without it ogb takes the folder for an old release and wants to delete it


def import_ogb(module: str) -> ModuleType:
    """Import a module of ogb, which at its first import would ask the network for newer releases of itself."""
    if "ogb" not in sys.modules:
        asking = sys.modules.get("outdated")
        sys.modules["outdated"] = None  # ogb goes without this package where it is not installed
        try:
            import_module("ogb")
        finally:
            del sys.modules["outdated"]
            if asking is not None:
                sys.modules["outdated"] = asking
    return import_module(module)


def ogb_files(name: str, archive: str, raw: tuple[str, ...], others: tuple[str, ...]) -> RawFiles:
    """Return the raw files of a data set in ogb's layout.

    Args:
        name: ogb's name of the data set.
        archive: name of the download, without its ending.
        raw: names in the folder ``raw``, without ``.csv.gz``.
        others: paths of further files.
    """
    files = (*(f"raw/{one}.csv.gz" for one in raw), *others)
    return RawFiles(HOME, files, base=name.replace("-", "_"), archives=(f"{archive}.zip",))


def ogb_source(level: str, licence: str) -> Source:
    """Return where ogb's data sets of a level ("graph", "node" or "link") come from."""
    return Source(
        citation="Hu et al., Open Graph Benchmark: Datasets for Machine Learning on Graphs, NeurIPS 2020",
        licence=licence,
        page=f"ogb.stanford.edu/docs/{level}prop",
    )


def open_ogb(
    level: str,
    home: str,
    name: str,
    raw: RawFiles,
    prepare: Callable[[Data], Data] | None = None,
    process: Callable[[InMemoryDataset], None] | None = None,
) -> InMemoryDataset:
    """Return a data set as ogb's class for its level reads it.

    Args:
        level: "graph", "node" or "link".
        home: folder that holds the data set's own.
        name: ogb's name of the data set.
        raw: all files that must be there: the class looks for some only, and fails on the others.
        prepare: applied to every graph when the data set is processed.
        process: processes the raw files in place of ogb's own method; None: that one does.

    Raises:
        DataError: a folder is there that ogb would read instead.
    """
    module = import_ogb(f"ogb.{level}proppred.dataset_pyg")
    kind, folder = getattr(module, CLASSES[level]), Path(home, raw.base)
    older = Path(home, f"{raw.base}_pyg")
    if older.exists():
        raise DataError(f"{name}: ogb would read the folder {older} of its older releases: move it elsewhere")
    if not (folder / MARKER).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_bytes(b"")
    download = module.download_url
    with (
        patch.object(kind, "raw_file_names", [f"../{file}" for file in raw.files]),
        patch.object(kind, "process", process or kind.process),
        patch.object(module, "decide_download", lambda _url: True),  # it asks the server even for a file at hand
        # Into the data set's own folder, where an archive may be at hand, and where damage to it is noticed.
        patch.object(module, "download_url", lambda url, _home: download(url, str(folder))),
        redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody writes to it
        try:
            return kind(name, root=home, pre_transform=prepare)
        except FileNotFoundError as error:  # the class found all of its files, or has unpacked them just now
            raise InputError(f"there is no {Path(error.filename).name} in it") from error
