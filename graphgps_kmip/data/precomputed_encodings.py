"""Data sets whose graphs carry encodings: computed once on all cores, kept on disk, added where a graph is read."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset, graph_words
from graphgps_kmip.data.encoding import Encoding, computed
from graphgps_kmip.data.encoding_cache import Column, in_memory, kept
from graphgps_kmip.data.parallel_chunks import cores, in_order
from graphgps_kmip.data.reading import graph_at
from graphgps_kmip.errors import InputError

GRAPHS = 2_000  # whose data are hashed together


class EncodedGraphs(Sequence[Data]):
    """The graphs of a sequence, each a shallow copy with its encodings.

    Args:
        graphs: stay where they are, and as they are.
        columns: attributes by name.
    """

    def __init__(self, graphs: Sequence[Data], columns: Mapping[str, Column]) -> None:
        self.graphs, self.columns = graphs, columns

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Data:
        number = range(len(self))[index]  # counts from the end, too
        graph = copy.copy(self.graphs[number])
        for name, column in self.columns.items():
            graph[name] = column[number]
        return graph


def encoded(
    dataset: GraphDataset, encodings: Sequence[Encoding], folder: Path | None, num_workers: int | None = None
) -> GraphDataset:
    """Return the same graphs, splits and summary, each graph with the attributes of all encodings.

    Args:
        dataset: is not changed.
        encodings: are computed one after the other, each unless it lies in ``folder`` for these data and settings.
        folder: of this data set's encodings; None: nothing is kept.
        num_workers: processes that compute; None: one for each core, 1: this one.

    Raises:
        ValueError: an encoding cannot be computed for a graph, gives attributes that differ in kind between graphs, or
            an attribute that is there already; a graph lacks what an encoding reads.
        DataError: the folder cannot be written to.
    """
    if not encodings:
        return dataset
    workers = num_workers or cores()
    digests, sizes = _digests(dataset, sorted({name for one in encodings for name in one.reads}), workers)
    taken = {name: "the data set" for name in (dataset.graphs[0].keys() if len(dataset) else ())}
    columns: dict[str, Column] = {}
    for encoding in encodings:
        compute = partial(computed, dataset.graphs, encoding, sizes, workers, dataset.files)
        found = in_memory(compute()) if folder is None else kept(folder, _key(encoding, digests), len(sizes), compute)
        if both := sorted(set(found) & set(taken)):
            raise InputError(f"{encoding.name}: its attribute {both[0]} comes from {taken[both[0]]} already")
        taken |= dict.fromkeys(found, encoding.name)
        columns |= found
    return dataset.with_graphs(EncodedGraphs(dataset.graphs, columns))


def _key(encoding: Encoding, digests: Mapping[str, str]) -> dict[str, Any]:
    data = {name: digests[name] for name in ("num_nodes", *encoding.reads)}
    settings = dict(encoding.settings)
    return {"encoding": encoding.name, "version": encoding.version, "settings": settings, "data": data}


def _digests(dataset: GraphDataset, names: list[str], workers: int) -> tuple[dict[str, str], np.ndarray]:
    """Look at every graph once: return a digest of each attribute, and all numbers of nodes."""
    chunks = [range(start, min(start + GRAPHS, len(dataset))) for start in range(0, len(dataset), GRAPHS)]
    digests = {name: hashlib.sha256() for name in names}
    look = partial(_hashed, dataset.graphs, names, dataset.files)
    sizes = [np.empty(0, np.int64)]
    for parts, size in in_order("looking at the graphs", look, chunks, workers):
        sizes.append(size)
        for name, part in parts.items():
            digests[name].update(part)
    sizes = np.concatenate(sizes)
    hexes = {name: digest.hexdigest() for name, digest in digests.items()}
    return {**hexes, "num_nodes": hashlib.sha256(sizes).hexdigest()}, sizes


def _hashed(
    graphs: Sequence[Data], names: list[str], files: Sequence[str] | None, chunk: range
) -> tuple[dict[str, bytes], np.ndarray]:
    digests = {name: hashlib.sha256() for name in names}
    sizes = np.empty(len(chunk), np.int64)
    for row, number in enumerate(chunk):
        place = graph_words(number, files)
        graph = graph_at(graphs, number, place)
        sizes[row] = graph.num_nodes
        for name, digest in digests.items():
            value = graph.get(name)
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                raise InputError(f"{place} has no tensor {name}, which an encoding reads: leave that encoding out")
            digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return {name: digest.digest() for name, digest in digests.items()}, sizes
