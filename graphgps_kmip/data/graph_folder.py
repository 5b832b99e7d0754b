"""A user's own folder of graph files as a data set, found by ``dataset.format Folder`` and its path as the name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch_geometric.data import Data

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.alike import check_alike
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.graph_file import READERS, placed_graphs, read_graphs, some
from graphgps_kmip.errors import DataError, InputError

FORMAT = "Folder"


def folder_record(
    name: str, root: str | Path = "", task_type: str = "classification", level: str = ""
) -> DatasetRecord:
    """Return the record of a folder of graph files.

    Args:
        name: path of the folder, absolute or from ``root``. It holds ``.pt`` files (`Data`, a dict of tensors, or a
            list of these) or ``.npz`` files (arrays), each with ``x``, ``edge_index`` and ``y``, in the natural order
            of their names; or three folders ``train``, ``val`` and ``test`` of such files.
        root: ``dataset.dir``.
        task_type: ``dataset.task_type``.
        level: what has a label: "graph", "inductive_node" or "node"; "" to see from the first graph with more than one
            node: one ``y`` or one for each node; the nodes of a single graph are divided, not graphs.

    Raises:
        DataError: no such folder or no graphs in it, the first file is not what it should be, or ``level`` is "" and
            the files do not tell.
    """
    return DatasetRecord(
        format=FORMAT,
        name=name,
        title=name,
        load=partial(load, name=name, task_type=task_type),
        task_type=task_type,
        level=level or _level(_files(_path(root, name))),
        summary="a folder of graph files",
        sample=_no_sample,
    )


def _no_sample(record: DatasetRecord, seed: int) -> GraphDataset:  # noqa: ARG001 (it is called by these names)
    raise InputError(f"dataset.sample: nothing is known of {record.title} but its files: set dataset.sample False")


def load(root: str, name: str, task_type: str = "classification") -> GraphDataset:
    """Return the graphs of a folder, with the split that its sub-folders make, if there are any.

    Raises:
        DataError: a file is damaged, holds code, or is not what it should be: which, and what is missing.
    """
    parts, places = [], []
    for files in _files(_path(root, name)).values():
        found = [pair for file in files for pair in placed_graphs(file)]
        parts.append([graph for _, graph in found])
        places += [place for place, _ in found]
    graphs = [graph for part in parts for graph in part]
    if not graphs:
        raise DataError(f"{_path(root, name)}: its files hold no graphs: write one or more into each")
    check_alike(zip(places, graphs, strict=True))
    for graph in graphs:
        if task_type != "classification":
            graph.y = graph.y.float()
        elif torch.equal(graph.y, graph.y.round()):  # classes that were saved as 0.0, 1.0, ...
            graph.y = graph.y.long()
    return GraphDataset(graphs, joined(parts).splits if len(parts) > 1 else None, files=places)


def _path(root: str | Path, name: str) -> Path:
    try:
        path = Path(root).expanduser() / Path(name).expanduser()
    except RuntimeError as error:  # ~ and the name of nobody
        raise DataError(f"dataset.dir, dataset.name: no home folder for {root!r} or {name!r}: give a path") from error
    if not name or not path.is_dir():
        beside = [one.name for one in path.parent.iterdir() if one.is_dir()] if name and path.parent.is_dir() else []
        hint = suggest(path.name, beside) if difflib.get_close_matches(path.name, beside) else ""
        raise DataError(f"dataset.name: there is no folder {str(path)!r}: give its path, from dataset.dir.{hint}")
    return path


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return the graph files of each part; of one part "" where the folder is not divided."""
    try:
        return _parts(folder)
    except OSError as error:
        place = error.filename or folder
        raise DataError(f"{place}: it cannot be read ({error.strerror}): check its permissions") from error


def _parts(folder: Path) -> dict[str, list[Path]]:
    inside = sorted(one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    divided = [split for split in SPLITS if split in inside]
    parts = {split: folder / split for split in SPLITS} if divided else {"": folder}
    if divided and len(divided) < len(SPLITS):
        absent = " and ".join(split for split in SPLITS if split not in inside)
        raise DataError(f"{folder}: a folder {absent} is missing beside {' and '.join(divided)}; it has {some(inside)}")
    files = {split: _graph_files(path) for split, path in parts.items()}
    if divided and _graph_files(folder):
        raise DataError(f"{folder}: graph files lie in it and in its folders {', '.join(SPLITS)}: move the former")
    for split, found in files.items():
        if not found:
            has = some(sorted(one.name for one in parts[split].iterdir()))
            raise DataError(f"{parts[split]}: there are no graph files (.pt or .npz); it has {has}")
    return files


def _graph_files(folder: Path) -> list[Path]:
    return sorted((one for one in folder.iterdir() if one.suffix in READERS and one.name[0] != "."), key=_natural)


def _natural(file: Path) -> list[tuple[bool, int | str]]:
    """Sort 2.pt before 10.pt."""
    parts = re.split(r"(\d+)", file.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else part) for part in parts]


def _level(files: Mapping[str, list[Path]]) -> str:
    first, *_ = files.values()
    graphs = (graph for found in files.values() for file in found for graph in read_graphs(file))
    seen: list[Data] = []
    for graph in graphs:
        seen.append(graph)
        if graph.num_nodes > 1:
            break
    if not seen:
        raise DataError(f"{first[0].parent}: its files hold no graphs: write one or more into each")
    last = seen[-1]
    alone = len(seen) == 1 and next(graphs, None) is None
    if alone and last.y.size(0) == last.num_nodes > 1:
        return "node"
    if last.num_nodes == 1:
        raise DataError(
            f"{first[0].parent}: graphs of one node do not tell whether a label is the graph's or the node's: "
            "set gnn.head to graph or inductive_node"
        )
    return "graph" if last.y.size(0) == 1 else "inductive_node"
