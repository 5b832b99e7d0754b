"""Graphs from one file of a user's own, ``.pt`` or ``.npz``: read without running code, with errors that name it."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.npz import read_npz
from graphgps_kmip.data.reading import FILE_ERRORS, one_line
from graphgps_kmip.data.tensors import check_finite, check_kind
from graphgps_kmip.data.unpickle import safe_unpickling
from graphgps_kmip.errors import DataError, UnsafeFile

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


def _read_pt(file: Path) -> Any:
    with safe_unpickling():
        return torch.load(file, map_location="cpu", weights_only=True)


READERS = {".npz": _read_npz, ".pt": _read_pt}


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
    return one_line(error)[:160]


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
