"""What is computed of each graph before training, and the computing: chunks of graphs, over all cores."""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import graph_words
from graphgps_kmip.data.encoding_cache import SHAPE, Packed
from graphgps_kmip.data.parallel_chunks import in_order
from graphgps_kmip.data.reading import graph_at
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
            many dimensions, and of the same dtype, in all graphs; floats are kept as float32. What it gives for a
            graph must not depend on the other graphs in the list, nor on a global random generator.
        version: raised when the definition changes.
        random: ``compute`` draws: ``settings["seed"]`` must be there, and the graphs it is given carry their number in
            the data set as ``graph_id``, so that each can have a generator of its own.
        reads: attributes of a graph, beside ``num_nodes``, on which the numbers depend.

    Raises:
        ValueError: a name that no file can have, settings that are not plain values, a random encoding without seed.
    """

    name: str
    settings: Mapping[str, Any]
    compute: Callable[[list[Data]], list[dict[str, Tensor]]]
    version: int = 1
    random: bool = False
    reads: tuple[str, ...] = ("edge_index",)

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
    graphs: Sequence[Data],
    encoding: Encoding,
    sizes: np.ndarray,
    num_workers: int,
    files: Sequence[str] | None = None,
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
        except Exception as error:  # of whatever kind: what it was about is told, and it is raised
            raise InputError(f"{encoding.name}: {_culprit(encoding, given, files, chunk, error)}") from error
    if len(results) != len(given):
        raise InputError(f"{encoding.name}: {len(results)} results for {len(given)} graphs")
    return {name: _packed(encoding, name, results, chunk) for name in sorted({name for one in results for name in one})}


def _culprit(encoding: Encoding, given: list[Data], files: Sequence[str] | None, chunk: range, error: Exception) -> str:
    """Return which graph of a failed chunk fails alone, and why; the whole chunk if none does."""
    where = f"graphs {chunk[0]:,} to {chunk[-1]:,}" if len(chunk) > 1 else graph_words(chunk[0], files)
    for number, graph in zip(chunk, given, strict=True) if len(chunk) > 1 else ():
        try:
            encoding.compute([graph])
        except Exception as alone:
            where, error = graph_words(number, files), alone
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
        arrays.append((value.float() if value.is_floating_point() else value).numpy())
        if (arrays[-1].dtype, arrays[-1].ndim) != (arrays[0].dtype, arrays[0].ndim):
            raise InputError(
                f"{encoding.name}: graph {number:,}: {name} differs in dtype or dimensions from the others"
            )
    shapes = np.array([array.shape for array in arrays], SHAPE).reshape(len(arrays), arrays[0].ndim)
    return np.concatenate([array.reshape(-1) for array in arrays]), shapes
