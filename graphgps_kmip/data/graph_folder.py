"""Folder data sets: a user's own ``.pt`` and ``.npz`` graph files, as ``dataset.format Folder`` with a path as name.

Files are read without running code, what they claim is checked before memory is taken for it, and errors name the file.
"""

from __future__ import annotations

import difflib
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.file_errors import FILE_ERRORS, kind_and_text
from graphgps_kmip.data.graph_checks import check_alike, check_finite, check_kind, size_text, total_memory
from graphgps_kmip.data.safe_pickle import array_header, load_torch
from graphgps_kmip.errors import DataError, InputError, UnsafeFile

NUMBERS = "biuf"  # kinds of dtype: bool, signed, unsigned, float


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, in the byte order of this machine; long doubles become float64.

    Args:
        file: as `numpy.savez` writes it, compressed or not.

    Raises:
        DataError: a name occurs twice, an array does not hold real numbers, or claims more than the file holds or
            than fits into memory.
        BadZipFile, ValueError, EOFError, zlib.error: the file is damaged.
    """
    with zipfile.ZipFile(file) as archive:
        names = [member.filename for member in archive.infolist()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise DataError(f"{file}: it holds {twice[0]} twice: write it again")
        if other := [name for name in names if not name.endswith(".npy")]:
            raise DataError(f"{file}: {other[0]!r} in it is no array: write the file with numpy.savez")
        total = 0
        for member in archive.infolist():
            total += _claimed(archive, member, file)
        if total > total_memory():
            raise DataError(
                f"{file}: its arrays claim {size_text(total)}, and this machine has {size_text(total_memory())}"
            )
    with np.load(file, allow_pickle=False) as arrays:
        return {key: _native(arrays[key]) for key in arrays.files}


def _claimed(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> int:
    """Return the bytes that an array's header claims, once they are what its member holds."""
    key = member.filename.removesuffix(".npy")
    with archive.open(member) as content:
        shape, _, dtype = array_header(content)
        header = content.tell()
    if dtype.hasobject:
        raise DataError(f"{file}: {key} holds objects: save numbers (a list of rows of different lengths is objects)")
    if dtype.kind not in NUMBERS:
        raise DataError(f"{file}: {key} holds {dtype}, not real numbers: leave it out or encode it as numbers")
    claimed = math.prod(shape) * dtype.itemsize  # of Python's integers: it cannot overflow
    if claimed != member.file_size - header:
        raise DataError(
            f"{file}: {key} claims shape {shape}, {size_text(claimed)}, and holds "
            f"{size_text(max(0, member.file_size - header))}: write the file again"
        )
    return claimed


def _native(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


REQUIRED = ("x", "edge_index", "y")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
KNOWN = (*REQUIRED, "edge_attr", "pos", *MASKS)
DAMAGED = (*FILE_ERRORS, LookupError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile)
RESERVED = ("batch", "ptr", "num_graphs", "filler", "graph_id")  # attributes that mini-batches have of their own
INT64 = 2**63
LIKE = 0.7  # of difflib: "edges_index" and "edge_atr" are near misses, "edge_weight" is something else


def some(names: list[str]) -> str:
    """Return the first eight of these names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"


def _read_npz(file: Path) -> dict[str, Tensor]:
    return {key: _of_array(array, key, file) for key, array in read_npz(file).items()}


def _of_array(array: np.ndarray, key: str, file: Path) -> Tensor:
    if array.dtype == np.uint64 and array.size and int(array.max()) >= INT64:
        raise DataError(f"{file}: {key} holds {int(array.max())}, too large for int64: write smaller numbers")
    return torch.from_numpy(np.asarray(array.astype(np.int64) if array.dtype == np.uint64 else array))


READERS = {".npz": _read_npz, ".pt": load_torch}


def read_graphs(file: Path) -> Iterator[Data]:
    """Yield the graphs of a file; as `placed_graphs`, without their places."""
    return (graph for _, graph in placed_graphs(file))


def placed_graphs(file: Path) -> Iterator[tuple[str, Data]]:
    """Yield place and content of each graph of a file, checked, as types that models take: float32, int64, bool masks.

    Raises:
        DataError: the file is damaged, holds code, or a graph is not what it should be.
    """
    if not file.is_file():  # a pipe would never answer
        kind = "a broken link" if file.is_symlink() and not file.exists() else "not a regular file"
        raise DataError(f"{file}: it is {kind}: put a graph file there, or remove it")
    try:
        content = READERS[file.suffix](file)
    except DataError as error:
        if not isinstance(error, UnsafeFile):
            raise
        raise UnsafeFile(f"{file}: it cannot be read ({error}): write it again") from error
    except DAMAGED as error:
        raise DataError(f"{file}: it cannot be read ({_reason(error)}): write it again") from error
    graphs = content if isinstance(content, list | tuple) else [content]
    for number, graph in enumerate(graphs):
        where = f"{file}, graph {number}" if isinstance(content, list | tuple) else str(file)
        if not isinstance(graph, Data | dict):
            raise DataError(f"{where}: a graph must be a Data or a dict of tensors, got {type(graph).__name__}")
        yield where, _graph(graph.to_dict() if isinstance(graph, Data) else graph, where)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return kind_and_text(error)[:160]


def _graph(values: Mapping[str, Any], where: str) -> Data:
    values = {str(key): value for key, value in values.items() if value is not None and key != "num_nodes"}
    others = {key.lower(): key for key in values if key not in KNOWN}
    for key in KNOWN:
        near = difflib.get_close_matches(key, others, n=1, cutoff=LIKE)
        if key not in values and (near or key in REQUIRED):
            hint = f": is {others[near[0]]} meant?" if near else f"; it has {some(list(values))}"
            raise DataError(f"{where}: {key} is missing{hint}")
        if key in values:
            values[key] = _tensor(values[key], key, where)
    if reserved := [key for key in values if key not in KNOWN and _is_reserved(key)]:
        raise DataError(f"{where}: {reserved[0]} is a name that graphs and mini-batches use: rename this attribute")
    if absent := [key for key in MASKS if key not in values] if any(key in values for key in MASKS) else []:
        raise DataError(f"{where}: {absent[0]} is missing: give {', '.join(MASKS)}, or none of them")
    graph = Data(**values)
    _check_shapes(graph, where)
    return graph


def _is_reserved(key: str) -> bool:
    return key in RESERVED or key.startswith("num_") or callable(getattr(Data, key, None))


def _check_shapes(graph: Data, where: str) -> None:
    if graph.x.dim() != 2 or 0 in graph.x.shape:
        hints = {1: "give a single feature as a column, x[:, None]", 2: "for nodes without features a column of ones"}
        hint = hints.get(graph.x.dim(), "flatten the features of each node")
        raise DataError(
            f"{where}: x must be (nodes, features), each 1 or more, got shape {tuple(graph.x.shape)}: {hint}"
        )
    if graph.pos is not None and graph.pos.dim() != 2:
        raise DataError(f"{where}: pos must be (nodes, coordinates), got shape {tuple(graph.pos.shape)}")
    edges, nodes = graph.edge_index, graph.x.size(0)
    rows = {"y": (1, nodes), "edge_attr": (edges.size(-1),), "pos": (nodes,), **dict.fromkeys(MASKS, (nodes,))}
    if edges.dim() != 2 or edges.size(0) != 2:
        raise DataError(f"{where}: edge_index must be (2, number of edges), got {tuple(edges.shape)}")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(f"{where}: edge_index names nodes outside 0..{nodes - 1}, for x has {nodes} rows")
    for key, wanted in rows.items():
        if key in graph and graph[key].size(0) not in wanted:
            allowed = " or ".join(map(str, wanted))
            raise DataError(f"{where}: {key} must have {allowed} rows, got shape {tuple(graph[key].shape)}")


def _tensor(value: Any, key: str, where: str) -> Tensor:
    """Return an attribute as the type that models take, finite."""
    try:
        value = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{where}: {key} must be numbers, got {type(value).__name__}") from error
    check_kind(value, key, where)
    value = torch.atleast_1d(value)
    if key in MASKS:
        if not bool(((value == 0) | (value == 1)).all()):
            raise DataError(f"{where}: {key} must hold True and False, or 1 and 0: write a mask, not node numbers")
        return value.bool()
    if key == "edge_index" and value.numel() and (value.is_floating_point() or value.dtype == torch.bool):
        raise DataError(f"{where}: edge_index must be whole numbers, got {value.dtype}: save it as int64")
    if not value.is_floating_point() or key == "edge_index":
        return value.long()
    single = value.float()
    if bool((single.isinf() & ~value.isinf()).any()):
        raise DataError(f"{where}: {key} holds {float(value.abs().max()):g}, too large for float32: scale it")
    check_finite(single, key, where, nan_allowed=key == "y")  # whether NaN says "unknown" depends on the task
    return single


FORMAT = "Folder"
FLOAT_CLASSES = 20  # more classes than these are taken from whole numbers alone: floats may be numbers to predict


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
    for place, graph in zip(places, graphs, strict=True):
        if task_type != "classification":
            graph.y = graph.y.float()
        elif torch.equal(graph.y, graph.y.round()):  # classes that were saved as 0.0, 1.0, ...
            if graph.y.is_floating_point() and float(graph.y.max()) >= FLOAT_CLASSES:
                raise DataError(
                    f"{place}: y is {float(graph.y.max()):g} in {graph.y.dtype}, a class or a number? To predict "
                    "numbers set dataset.task_type to regression; classes from 0 on save as whole numbers (int64)"
                )
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
        raise DataError(f"{folder}: graph files are in it and in its folders {', '.join(SPLITS)}: move the former")
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
    single = len(seen) == 1 and next(graphs, None) is None
    if single and last.y.size(0) == last.num_nodes > 1:
        return "node"
    if last.num_nodes == 1:
        raise DataError(
            f"{first[0].parent}: graphs of one node do not tell whether a label is the graph's or the node's: "
            "set gnn.head to graph or inductive_node"
        )
    return "graph" if last.y.size(0) == 1 else "inductive_node"
