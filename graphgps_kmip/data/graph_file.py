"""Graphs from one file of a user's own, ``.pt`` or ``.npz``: read without running code, with errors that name it."""

from __future__ import annotations

import difflib
import pickle
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS
from graphgps_kmip.data.errors import DataError, UnsafeFile
from graphgps_kmip.data.unpickle import safe_unpickling

REQUIRED = ("x", "edge_index", "y")
MASKS = tuple(f"{split}_mask" for split in SPLITS)
KNOWN = (*REQUIRED, "edge_attr", "pos", *MASKS)
DAMAGED = (OSError, ValueError, LookupError, EOFError, TypeError, AttributeError, RuntimeError)
DAMAGED += (zipfile.BadZipFile, zlib.error, pickle.UnpicklingError)  # what reading a damaged file raises
LIKE = 0.7  # of difflib: "edges_index" and "edge_atr" are near misses, "edge_weight" is something else


def some(names: list[str]) -> str:
    """Return the first eight of these names, and how many more there are."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "nothing"


def _read_npz(file: Path) -> dict[str, Tensor]:
    with np.load(file, allow_pickle=False) as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


def _read_pt(file: Path) -> Any:
    with safe_unpickling():
        return torch.load(file, map_location="cpu", weights_only=True)


READERS = {".npz": _read_npz, ".pt": _read_pt}


def read_graphs(file: Path) -> Iterator[Data]:
    """Yield the graphs of a file, checked, with numbers of the types that models take: float32, int64, bool masks.

    Raises:
        DataError: the file is damaged, holds code, or a graph is not what it should be.
    """
    try:
        content = READERS[file.suffix](file)
    except DAMAGED as error:
        reason = error if isinstance(error, UnsafeFile) else f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"{file}: it cannot be read ({str(reason)[:160]}): write it again") from error
    graphs = content if isinstance(content, list | tuple) else [content]
    for number, graph in enumerate(graphs):
        where = f"{file}, graph {number}" if isinstance(content, list | tuple) else str(file)
        if not isinstance(graph, Data | dict):
            raise DataError(f"{where}: a graph must be a Data or a dict of tensors, got {type(graph).__name__}")
        yield _graph(graph.to_dict() if isinstance(graph, Data) else graph, where)


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
    graph = Data(**values)
    edges, nodes = graph.edge_index, graph.x.size(0)
    rows = {"y": (1, nodes), "edge_attr": (edges.size(-1),), "pos": (nodes,), **dict.fromkeys(MASKS, (nodes,))}
    if edges.dim() != 2 or edges.size(0) != 2:
        raise DataError(f"{where}: edge_index must be (2, number of edges), got {tuple(edges.shape)}")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < nodes:
        raise DataError(f"{where}: edge_index names nodes outside 0..{nodes - 1}, for x has {nodes} rows")
    for key, wanted in rows.items():
        if key in values and values[key].size(0) not in wanted:
            allowed = " or ".join(map(str, wanted))
            raise DataError(f"{where}: {key} must have {allowed} rows, got shape {tuple(values[key].shape)}")
    return graph


def _tensor(value: Any, key: str, where: str) -> Tensor:
    try:
        value = torch.atleast_1d(torch.as_tensor(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: {key} must be numbers, got {type(value).__name__}") from error
    if key in MASKS:
        return value.bool()
    if key == "edge_index" and value.is_floating_point() and value.numel():
        raise DataError(f"{where}: edge_index must be whole numbers, got {value.dtype}")
    return value.float() if value.is_floating_point() and key != "edge_index" else value.long()
