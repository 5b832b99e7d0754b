"""Precomputed encodings of every graph: computed once on all cores, stored on disk, added when a graph is read."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset, graph_words
from graphgps_kmip.data.encoding_cache import SHAPE, Column, Packed, in_memory, kept
from graphgps_kmip.data.file_errors import graph_at
from graphgps_kmip.data.worker_processes import cores, in_order
from graphgps_kmip.errors import InputError

log = logging.getLogger(__name__)
NODES = 10_000  # of the graphs that are encoded together, about: dense matrices of 50 graphs of 200 nodes are 16 MB


@dataclass(frozen=True)
class Encoding:
    """What is computed of each graph before training, and everything that decides its numbers.

    Args:
        name: begins the name of its folder in the cache.
        settings: what decides the numbers, beside the graph: plain values.
        compute: takes some graphs, which it must not change, and returns the new attributes of each: tensors with as
            many dimensions, and of the same dtype, in all graphs. What it gives for a graph must not depend on the
            other graphs in the list, nor on a global random generator.
        version: raised when the definition changes.
        random: ``compute`` draws: ``settings["seed"]`` must be there, and the graphs it is given carry their number in
            the data set as ``graph_id``, so that each can have a generator of its own.
        reads: attributes of a graph, beside ``num_nodes``, on which the numbers depend.
        float64: floats are kept as they are, otherwise as float32.

    Raises:
        ValueError: a name that no file can have, settings that are not plain values, a random encoding without seed.
    """

    name: str
    settings: Mapping[str, Any]
    compute: Callable[[list[Data]], list[dict[str, Tensor]]]
    version: int = 1
    random: bool = False
    reads: tuple[str, ...] = ("edge_index",)
    float64: bool = False

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.+-]*", self.name):
            raise InputError(f"encoding {self.name!r}: a name may hold letters, digits and _ . + - only")
        if self.random and "seed" not in self.settings:
            raise InputError(f"{self.name}: it is random, and its settings hold no seed: add one")
        try:
            json.dumps(self.settings)
        except TypeError as error:
            raise InputError(f"{self.name}: settings must be numbers, strings and lists of them ({error})") from error


def computed(
    graphs: Sequence[Data], encoding: Encoding, sizes: np.ndarray, num_workers: int, files: Sequence[str] | None = None
) -> Iterator[Packed]:
    """Yield the attributes of the graphs, chunk by chunk; chunks do not depend on the number of processes.

    Args:
        graphs: are read in the processes.
        encoding: what is computed.
        sizes: number of nodes of each graph.
        num_workers: processes; 1: this one.
        files: where each graph was read from, for errors; None: not known.

    Raises:
        ValueError: ``compute`` failed, or its attributes are no tensors, or differ in kind between graphs.
    """
    log.info("%s: computing it for %s graphs", encoding.name, f"{len(sizes):,}")
    ends = np.flatnonzero(np.diff((sizes + 1).cumsum() // NODES)) + 1
    bounds = np.unique([0, *ends, len(sizes)]).tolist()
    chunks = [range(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]
    kinds: dict[str, tuple[np.dtype, int]] | None = None
    for pack in in_order(encoding.name, partial(_encoded, graphs, encoding, files), chunks, num_workers):
        found = {name: (values.dtype, shapes.shape[1]) for name, (values, shapes) in pack.items()}
        kinds = found if kinds is None else kinds
        if found != kinds:
            raise InputError(f"{encoding.name}: attributes differ in name, dtype or dimensions: {kinds} and {found}")
        yield pack


def _encoded(graphs: Sequence[Data], encoding: Encoding, files: Sequence[str] | None, chunk: range) -> Packed:
    given = [copy.copy(graph_at(graphs, number, graph_words(number, files))) for number in chunk]
    if encoding.random:
        for number, graph in zip(chunk, given, strict=True):
            graph.graph_id = number
    with torch.random.fork_rng(devices=[]):  # whether an encoding was kept must not move a run's random numbers
        try:
            results = encoding.compute(given)
        except Exception as error:  # of whatever kind: it is raised with the graph that it is about
            raise InputError(f"{encoding.name}: {_culprit(encoding, given, files, chunk, error)}") from error
    if len(results) != len(given):
        raise InputError(f"{encoding.name}: {len(results)} results for {len(given)} graphs")
    return {name: _packed(encoding, name, results, chunk) for name in sorted({name for one in results for name in one})}


def _culprit(encoding: Encoding, given: list[Data], files: Sequence[str] | None, chunk: range, error: Exception) -> str:
    """Return which graph of a failed chunk fails by itself, and why; the whole chunk if none does."""
    where = f"graphs {chunk[0]:,} to {chunk[-1]:,}" if len(chunk) > 1 else graph_words(chunk[0], files)
    for number, graph in zip(chunk, given, strict=True) if len(chunk) > 1 else ():
        try:
            encoding.compute([graph])
        except Exception as single:
            where, error = graph_words(number, files), single
            break
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())}"


def _packed(
    encoding: Encoding, name: str, results: list[dict[str, Tensor]], chunk: range
) -> tuple[np.ndarray, np.ndarray]:
    """Return one attribute of some graphs as flat values, and its shapes."""
    if not name.isidentifier():
        raise InputError(f"{encoding.name}: {name!r} cannot be the name of an attribute")
    arrays = []
    for number, result in zip(chunk, results, strict=True):
        value = result.get(name)
        if not isinstance(value, Tensor) or value.is_complex() or value.layout != torch.strided:
            raise InputError(
                f"{encoding.name}: graph {number:,}: {name} must be a dense real tensor, got {type(value)}"
            )
        value = value.detach().cpu()
        arrays.append((value.float() if value.is_floating_point() and not encoding.float64 else value).numpy())
        if (arrays[-1].dtype, arrays[-1].ndim) != (arrays[0].dtype, arrays[0].ndim):
            raise InputError(
                f"{encoding.name}: graph {number:,}: {name} differs in dtype or dimensions from the others"
            )
    shapes = np.array([array.shape for array in arrays], SHAPE).reshape(len(arrays), arrays[0].ndim)
    return np.concatenate([array.reshape(-1) for array in arrays]), shapes


GRAPHS = 2_000  # whose data are hashed together


class EncodedGraphs(Sequence[Data]):
    """The graphs of a sequence, each a shallow copy with its encodings, the columns by name."""

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
        encodings: are computed one after the other, each unless it is stored in ``folder`` for these data and settings.
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
