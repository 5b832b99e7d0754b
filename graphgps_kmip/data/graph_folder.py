"""Folder data sets: a user's own ``.pt`` and ``.npz`` graph files, as ``dataset.format Folder`` with a path as name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.csv_folder import INDEX, read_split, read_tables
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, join_parts
from graphgps_kmip.data.dataset_info import check_alike
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.safe_pickle import load_torch
from graphgps_kmip.data.splits import divide_labels, divide_links
from graphgps_kmip.errors import DataError, InputError

REQUIRED = ("x", "edge_index", "y")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
PAIRS = ("edge_index", "edge_label_index")
KNOWN = (*REQUIRED, "edge_attr", "pos", "edge_label", "edge_label_index", *MASKS)
RESERVED = ("batch", "ptr", "num_graphs", "filler", "graph_id")  # attributes that mini-batches have of their own
LIKE = 0.7  # of difflib: "edges_index" and "edge_atr" are near misses, "edge_weight" is something else


def _list_first(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as arrays:
        return {key: np.asarray(arrays[key], arrays[key].dtype.newbyteorder("=")) for key in arrays.files}


READERS = {".npz": _read_npz, ".pt": load_torch, **dict.fromkeys(INDEX, read_tables)}  # by ending, or by name
FILES = ".pt, .npz or num-node-list.csv"


def _reader(file: Path) -> Callable[[Path], Any] | None:
    return READERS.get(file.name) or READERS.get(file.suffix)


def read_graphs(file: Path, required: Sequence[str] = REQUIRED) -> Iterator[tuple[str, Data]]:
    """Yield place and content of each graph of a file, as types that models take: float32, int64, bool masks."""
    with reading(file):
        content = _reader(file)(file)
    file = file.parent if file.name in INDEX else file
    graphs = content if isinstance(content, list | tuple) else [content]
    for number, graph in enumerate(graphs):
        where = f"{file}, graph {number}" if isinstance(content, list | tuple) else str(file)
        if not isinstance(graph, Data | dict):
            raise DataError(f"{where}: a graph must be a Data or a dict of tensors, got {type(graph).__name__}")
        yield where, _make_graph(graph.to_dict() if isinstance(graph, Data) else graph, where, required)


def _make_graph(values: Mapping[str, Any], where: str, required: Sequence[str]) -> Data:
    values = {str(key): value for key, value in values.items() if value is not None and key != "num_nodes"}
    others = {key.lower(): key for key in values if key not in KNOWN}
    for key in KNOWN:
        near = difflib.get_close_matches(key, others, n=1, cutoff=LIKE)
        if key not in values and (near or key in required):
            hint = f": is {others[near[0]]} meant?" if near else f"; it has {_list_first(list(values))}"
            raise DataError(f"{where}: {key} is missing{hint}")
        if key in values:
            values[key] = _to_tensor(values[key], key, where)
    for key in values:
        if key in RESERVED or key.startswith("num_") or callable(getattr(Data, key, None)):
            raise DataError(f"{where}: {key} is a name that graphs and mini-batches use: rename this attribute")
    if absent := [key for key in MASKS if key not in values] if any(key in values for key in MASKS) else []:
        raise DataError(f"{where}: {absent[0]} is missing: give {', '.join(MASKS)}, or none of them")
    if "edge_label" in values:
        values.setdefault("edge_label_index", values["edge_index"])
    shape = tuple(values["x"].shape)
    if len(shape) != 2 or 0 in shape:
        hints = {1: "give a single feature as a column, x[:, None]", 2: "for nodes without features a column of ones"}
        hint = hints.get(len(shape), "flatten the features of each node")
        raise DataError(f"{where}: x must be (nodes, features), each 1 or more, got shape {shape}: {hint}")
    return Data(**values)


def _to_tensor(value: Any, key: str, where: str) -> Tensor:
    try:
        value = torch.atleast_1d(torch.as_tensor(value).detach())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DataError(f"{where}: {key} must be numbers, got {type(value).__name__}") from error
    if value.is_complex() or value.layout != torch.strided:
        raise DataError(f"{where}: {key} must be a dense tensor of real numbers, got {value.layout} {value.dtype}")
    if key in MASKS:
        if not bool(((value == 0) | (value == 1)).all()):
            raise DataError(f"{where}: {key} must hold True and False, or 1 and 0: write a mask, not node numbers")
        return value.bool()
    if key in PAIRS and value.numel() and (value.is_floating_point() or value.dtype == torch.bool):
        raise DataError(f"{where}: {key} must be whole numbers, got {value.dtype}: save it as int64")
    return value.float() if value.is_floating_point() and key not in PAIRS else value.long()


FORMAT = "Folder"
NO_GRAPHS = "{}: its files hold no graphs: write one or more into each"
FLOAT_CLASSES = 20  # more classes than these are taken from whole numbers alone: floats may be numbers to predict


def folder_record(
    name: str,
    root: str | Path = "",
    task_type: str = "classification",
    level: str = "",
    links: Mapping[str, float] | None = None,
) -> DatasetRecord:
    """Return the record of a folder of graph files.

    Args:
        name: path of the folder, absolute or from ``root``, of ``.pt`` files (`Data`, a dict of tensors, or a list of
            these) or ``.npz`` files, in natural order, or of CSV tables (`csv_folder`); or of three such folders
            ``train``, ``val`` and ``test``.
        root: ``dataset.dir``.
        task_type: ``dataset.task_type``.
        level: a key of `LEVELS`; "": see from the first graph with more than one node.
        links: predict edges (``dataset.task link_pred``); arguments of `divide_links`.
    """
    path = _path(root, name)
    if links is not None:
        task_type, level, label, divide = "link_prediction", "link", "", partial(divide_links, **links)
    else:
        level = level or _level(_files(path))
        label, divide = "edge_label" if level == "link" else "y", None
        if level == "link":
            graphs = list(islice((graph for _, graph in _read_all(_files(path), ("edge_label",))), 2))
            if len(graphs) == 1:
                divide = partial(divide_labels, split=read_split(path, graphs[0].edge_label_index.size(1)))
    return DatasetRecord(
        format=FORMAT,
        name=name,
        title=name,
        load=partial(load, name=name, task_type=task_type, label=label),
        task_type=task_type,
        level=level,
        summary="a folder of graph files",
        sample=_no_sample,
        divide=divide,
    )


def _no_sample(record: DatasetRecord, seed: int) -> GraphDataset:  # noqa: ARG001 (it is called by these names)
    raise InputError(f"dataset.sample: nothing is known of {record.title} but its files: set dataset.sample False")


def load(
    root: str, name: str, task_type: str = "classification", label: str = "y", is_optional: bool = False
) -> GraphDataset:
    """Return the graphs of a folder, with the split that its sub-folders or split files make, if there are any.

    Args:
        root: ``dataset.dir``.
        name: path of the folder, absolute or from ``root``.
        task_type: ``dataset.task_type``.
        label: attribute that is predicted, "y" or "edge_label"; "": none.
        is_optional: graphs may be without it.
    """
    path, parts, places = _path(root, name), [], []
    required = (*REQUIRED[:2], *([label] if label and not is_optional else []))
    for files in _files(path).values():
        pairs = list(_read_all({"": files}, required))
        parts.append([graph for _, graph in pairs])
        places += [place for place, _ in pairs]
    graphs = [graph for part in parts for graph in part]
    if not graphs:
        raise DataError(NO_GRAPHS.format(path))
    check_alike(zip(places, graphs, strict=True))
    for place, graph in zip(places, graphs, strict=True):
        if label in graph:
            graph[label] = _type_labels(graph[label], label, task_type, place)
    if len(parts) > 1:
        return GraphDataset(graphs, join_parts(parts).splits, files=places)
    if len(graphs) == 1:  # its nodes are divided, or pairs of them, see `folder_record`
        split = read_split(path, graphs[0].num_nodes) if label == "y" else None
        for mask, rows in zip(MASKS, split or (), strict=False):
            graphs[0][mask] = index_to_mask(rows, graphs[0].num_nodes)
        return GraphDataset(graphs, files=places)
    return GraphDataset(graphs, read_split(path, len(graphs)), files=places)


def _type_labels(labels: Tensor, label: str, task_type: str, place: str) -> Tensor:
    if task_type != "classification":
        return labels.float()
    if not torch.equal(labels, labels.round()):
        return labels
    if labels.is_floating_point() and float(labels.max()) >= FLOAT_CLASSES:  # classes saved as 0.0, 1.0, ... are fewer
        raise DataError(
            f"{place}: {label} is {float(labels.max()):g} in {labels.dtype}, a class or a number? To predict "
            "numbers set dataset.task_type to regression; classes from 0 on save as whole numbers (int64)"
        )
    return labels.long()


def _read_all(files: Mapping[str, list[Path]], required: Sequence[str]) -> Iterator[tuple[str, Data]]:
    return (pair for part in files.values() for file in part for pair in read_graphs(file, required))


def _path(root: str | Path, name: str) -> Path:
    path = Path(root).expanduser() / Path(name).expanduser()
    if not name or not path.is_dir():
        siblings = [folder.name for folder in path.parent.glob("*/")] if name else []
        hint = suggest(path.name, siblings) if difflib.get_close_matches(path.name, siblings) else ""
        raise DataError(f"dataset.name: there is no folder {str(path)!r}: give its path, from dataset.dir.{hint}")
    return path


def _files(folder: Path) -> dict[str, list[Path]]:
    """Return the graph files of each part; of one part "" where the folder is not divided."""
    inside = sorted(part.name for part in folder.glob("[!.]*/"))
    divided = [split for split in SPLITS if split in inside]
    whole = folder / "raw" if "raw" in inside and not _graph_files(folder) else folder  # as ogb lays it out
    parts = {split: folder / split for split in SPLITS} if divided else {"": whole}
    if divided and len(divided) < len(SPLITS):
        absent = " and ".join(split for split in SPLITS if split not in inside)
        raise DataError(
            f"{folder}: a folder {absent} is missing next to {' and '.join(divided)}; it has {_list_first(inside)}"
        )
    files = {split: _graph_files(path) for split, path in parts.items()}
    if divided and _graph_files(folder):
        raise DataError(f"{folder}: graph files are in it and in its folders {', '.join(SPLITS)}: move the former")
    for split, paths in files.items():
        if not paths:
            has = _list_first(sorted(file.name for file in parts[split].iterdir()))
            raise DataError(f"{parts[split]}: there are no graph files ({FILES}); it has {has}")
    return files


def _graph_files(folder: Path) -> list[Path]:
    return sorted((file for file in folder.glob("[!.]*") if _reader(file)), key=_natural_order)


def _natural_order(file: Path) -> list[tuple[bool, int | str]]:
    parts = re.split(r"(\d+)", file.name)  # 2.pt before 10.pt
    return [(part.isdecimal(), int(part) if part.isdecimal() else part) for part in parts]


def _level(files: Mapping[str, list[Path]]) -> str:
    first, *_ = files.values()
    graphs = (graph for _, graph in _read_all(files, REQUIRED[:2]))
    seen: list[Data] = []
    for graph in graphs:
        seen.append(graph)
        if "edge_label" in graph:
            return "link"
        if "y" not in graph:
            raise DataError(f"{first[0]}: y is missing; it has {_list_first(sorted(graph.to_dict()))}")
        if graph.num_nodes > 1:
            break
    if not seen:
        raise DataError(NO_GRAPHS.format(first[0].parent))
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
