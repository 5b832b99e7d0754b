"""Precomputed encodings of every graph: computed once on all cores, stored on disk, added when a graph is read."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip import __version__
from graphgps_kmip.common.file_lock import locked
from graphgps_kmip.common.forked_work import begin_worker, load_scipy
from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.data.dataset import GraphDataset, hash_attribute
from graphgps_kmip.data.file_errors import graph_at, naming_disk
from graphgps_kmip.data.raw_files import file_sum
from graphgps_kmip.errors import DataError, InputError

log = logging.getLogger(__name__)
NODES = 10_000  # of the graphs that are encoded together, about: dense matrices of 50 graphs of 200 nodes are 16 MB


@dataclass(frozen=True)
class Encoding:
    """What is computed of each graph before training, and everything that decides its numbers.

    Args:
        name: begins the name of its folder in the cache.
        settings: plain values that decide the numbers, as the graph does.
        compute: returns the new attributes of each of some graphs: tensors of one dtype and number of dimensions, which
            depend on no other graph in the list and on no global random generator.
        version: raised when the definition changes.
        random: ``compute`` draws by ``settings["seed"]`` and the number of the graph in the data set, its ``graph_id``.
        reads: attributes of a graph, besides ``num_nodes``, on which the numbers depend.
        float64: floats are kept as they are, otherwise as float32.
    """

    name: str
    settings: Mapping[str, Any]
    compute: Callable[[list[Data]], list[dict[str, Tensor]]]
    version: int = 1
    random: bool = False
    reads: tuple[str, ...] = ("edge_index",)
    float64: bool = False

    def __post_init__(self) -> None:
        if self.random and "seed" not in self.settings:
            raise InputError(f"{self.name}: it is random, and its settings hold no seed: add one")


def _compute_all(dataset: GraphDataset, encoding: Encoding, sizes: np.ndarray, num_workers: int) -> Iterator[Packed]:
    log.info("%s: computing it for %s graph%s", encoding.name, f"{len(sizes):,}", "s" * (len(sizes) != 1))
    ends = np.flatnonzero(np.diff((sizes + 1).cumsum() // NODES)) + 1
    bounds = np.unique([0, *ends, len(sizes)]).tolist()
    chunks = [range(first, end) for first, end in zip(bounds, bounds[1:], strict=False)]
    kinds: dict[str, tuple[np.dtype, int]] | None = None
    for pack in map_in_order(encoding.name, partial(_compute_chunk, dataset, encoding), chunks, num_workers):
        pack_kinds = {name: (values.dtype, shapes.shape[1]) for name, (values, shapes) in pack.items()}
        kinds = pack_kinds if kinds is None else kinds
        if pack_kinds != kinds:
            raise InputError(
                f"{encoding.name}: attributes differ in name, dtype or dimensions: {kinds} and {pack_kinds}"
            )
        yield pack


def _compute_chunk(dataset: GraphDataset, encoding: Encoding, chunk: range) -> Packed:
    graphs = [copy.copy(graph_at(dataset.graphs, number, dataset.place(number))) for number in chunk]
    if encoding.random:
        for number, graph in zip(chunk, graphs, strict=True):
            graph.graph_id = number
    with torch.random.fork_rng(devices=[]):  # whether an encoding was kept must not move a run's random numbers
        try:
            results = encoding.compute(graphs)
        except Exception as error:  # of whatever kind: it is raised with the graph that fails by itself
            where, culprit = f"graphs {chunk[0]:,} to {chunk[-1]:,}", error
            for number, graph in zip(chunk, graphs, strict=True):
                try:
                    encoding.compute([graph])
                except Exception as single:
                    where, culprit = dataset.place(number), single
                    break
            text = " ".join(str(culprit).split())
            raise InputError(f"{encoding.name}: {where}: {type(culprit).__name__}: {text}") from error
    if len(results) != len(graphs):
        raise InputError(f"{encoding.name}: {len(results)} results for {len(graphs)} graphs")
    names = sorted({name for result in results for name in result})
    return {name: _pack(encoding, name, results, chunk) for name in names}


def _pack(
    encoding: Encoding, name: str, results: list[dict[str, Tensor]], chunk: range
) -> tuple[np.ndarray, np.ndarray]:
    if not name.isidentifier():
        raise InputError(f"{encoding.name}: {name!r} cannot be the name of an attribute")
    arrays = []
    for number, result in zip(chunk, results, strict=True):
        value = result.get(name)
        if not isinstance(value, Tensor) or value.is_complex() or value.layout != torch.strided:
            raise InputError(f"{encoding.name}: graph {number:,}: {name} must be a dense real tensor")
        value = value.detach().cpu()
        arrays.append((value.float() if value.is_floating_point() and not encoding.float64 else value).numpy())
        if (arrays[-1].dtype, arrays[-1].ndim) != (arrays[0].dtype, arrays[0].ndim):
            raise InputError(f"{encoding.name}: graph {number:,}: {name} differs in dtype or dimensions")
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), arrays[0].ndim)
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
        encodings: are computed one by one, each unless it is stored in ``folder`` for these data and settings.
        folder: of this data set's encodings; None: nothing is kept.
        num_workers: processes that compute; None: one for each core, 1: this one.
    """
    if not encodings:
        return dataset
    workers = num_workers or cores()
    digests, sizes = _look(dataset, sorted({name for encoding in encodings for name in encoding.reads}), workers)
    sources = {name: "the data set" for name in (dataset.graphs[0].keys() if len(dataset) else ())}
    columns: dict[str, Column] = {}
    for encoding in encodings:
        compute = partial(_compute_all, dataset, encoding, sizes, workers)
        data = {name: digests[name] for name in ("num_nodes", *encoding.reads)}
        settings = dict(encoding.settings)
        key = {"encoding": encoding.name, "version": encoding.version, "settings": settings, "data": data}
        new = _join_packs(compute()) if folder is None else _load_or_compute(folder, key, compute)
        if both := sorted(set(new) & set(sources)):
            raise InputError(f"{encoding.name}: its attribute {both[0]} comes from {sources[both[0]]} already")
        sources |= dict.fromkeys(new, encoding.name)
        columns |= new
    return dataset.with_graphs(EncodedGraphs(dataset.graphs, columns))


def _look(dataset: GraphDataset, names: list[str], workers: int) -> tuple[dict[str, str], np.ndarray]:
    chunks = [range(start, min(start + GRAPHS, len(dataset))) for start in range(0, len(dataset), GRAPHS)]
    digests = {name: hashlib.sha256() for name in names}
    all_sizes = [np.empty(0, np.int64)]
    for parts, sizes in map_in_order("looking at the graphs", partial(_hash_chunk, dataset, names), chunks, workers):
        all_sizes.append(sizes)
        for name, part in parts.items():
            digests[name].update(part)
    sizes = np.concatenate(all_sizes)
    digests["num_nodes"] = hashlib.sha256(sizes)
    return {name: digest.hexdigest() for name, digest in digests.items()}, sizes


def _hash_chunk(dataset: GraphDataset, names: list[str], chunk: range) -> tuple[dict[str, bytes], np.ndarray]:
    digests = {name: hashlib.sha256() for name in names}
    sizes = np.empty(len(chunk), np.int64)
    for row, number in enumerate(chunk):
        place = dataset.place(number)
        graph = graph_at(dataset.graphs, number, place)
        sizes[row] = graph.num_nodes
        for name, digest in digests.items():
            hash_attribute(digest, graph, name, f"{place}, which an encoding reads,")
    return {name: digest.digest() for name, digest in digests.items()}, sizes


COLUMNS = "columns.pt"
PROVENANCE = "provenance.json"  # for people

Packed = dict[str, tuple[np.ndarray, np.ndarray]]  # attribute -> values of some graphs, flat; shapes (graphs, dims)


class Column:
    """One attribute of every graph: values (V,) of all graphs, flat, and shapes (G, dims) of each graph's tensor."""

    def __init__(self, values: np.ndarray, shapes: np.ndarray) -> None:
        self.values, self.shapes = values, shapes
        self.bounds = np.append(0, shapes.prod(axis=1).cumsum())
        if self.bounds[-1] != len(values):
            raise InputError(f"{len(values):,} values where the shapes of the graphs say {self.bounds[-1]:,}")

    @classmethod
    def mapped(cls, path: Path, dtype: str, shapes: np.ndarray) -> Column:
        """Return a column whose values stay in a file until they are used."""
        empty = path.stat().st_size == 0  # which cannot be mapped
        return cls(np.empty(0, dtype) if empty else np.memmap(path, dtype, mode="r"), shapes)

    def __getitem__(self, index: int) -> Tensor:
        values = np.array(self.values[self.bounds[index] : self.bounds[index + 1]])
        return torch.from_numpy(values.reshape(self.shapes[index]))

    def __reduce__(self) -> tuple[Any, ...]:  # a loader's process that is not forked maps the file itself
        if isinstance(self.values, np.memmap):
            return Column.mapped, (Path(self.values.filename), self.values.dtype.str, self.shapes)
        return Column, (self.values, self.shapes)


def _join_packs(packs: Iterable[Packed]) -> dict[str, Column]:
    packs = list(packs)
    names = packs[0] if packs else ()
    return {name: Column(*map(np.concatenate, zip(*(pack[name] for pack in packs), strict=True))) for name in names}


def _load_or_compute(
    folder: Path, key: Mapping[str, Any], compute: Callable[[], Iterable[Packed]]
) -> dict[str, Column]:
    """Return the columns stored in a folder under a key, or compute and store them; one process does, others wait."""
    folder = folder.expanduser().absolute()
    text = json.dumps(key, sort_keys=True)
    place = folder / f"{key['encoding']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    with naming_disk(f"encoding {key['encoding']}", folder):
        if (columns := _open(place)) is not None:  # nothing to write: no lock, no rights
            return columns
        with locked(folder / f".{place.name}.lock", f"encoding {place.name}"):
            if (columns := _open(place)) is not None:
                return columns
            shutil.rmtree(place, ignore_errors=True)
            part = folder / f".{place.name}.part"
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            try:
                _write(part, key, compute())
                part.rename(place)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        if (columns := _open(place)) is None:
            raise DataError(f"{place}: what was just written cannot be read: is the disk sound?")
        return columns


def _open(place: Path) -> dict[str, Column] | None:
    """Return the columns in a folder; None if there is none, or any of it is not as it was written."""
    if not place.is_dir():
        return None
    try:
        stored = load_plain(place / COLUMNS)
        columns = {}
        for name, (dtype, shapes, digest) in stored["columns"].items():
            file = place / f"{name}.values"
            if file_sum(file) != digest:
                raise InputError(f"{file.name} is not as it was written")
            columns[name] = Column.mapped(file, dtype, shapes.numpy())
    except (FileNotFoundError, UnreadableFile, InputError) as error:
        log.warning("%s is damaged (%s): it is not used, and computed again", place, error)
        return None
    log.info("read from %s, computed on %s", place, stored["date"])
    return columns


def _write(part: Path, key: Mapping[str, Any], packs: Iterable[Packed]) -> None:
    start = time.perf_counter()
    part.mkdir()
    dtypes: dict[str, str] = {}
    shapes: dict[str, list[np.ndarray]] = {}
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for pack in packs:
            for name, (values, shape) in pack.items():
                if name not in files:
                    files[name] = stack.enter_context(open(part / f"{name}.values", "wb"))
                    dtypes[name], shapes[name] = values.dtype.str, []
                values.tofile(files[name])
                shapes[name].append(shape)
    columns = {
        name: (dtype, torch.from_numpy(np.concatenate(shapes[name])), file_sum(part / f"{name}.values"))
        for name, dtype in dtypes.items()
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    save_plain(part / COLUMNS, {"columns": columns, "date": date})
    provenance = {
        "key": key,
        "attributes": dtypes,
        "graphs": sum(map(len, next(iter(shapes.values()), []))),
        "package": f"graphgps_kmip {__version__}",
        "date": date,
        "seconds": round(time.perf_counter() - start, 3),
    }
    (part / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")


Result = TypeVar("Result")
_work: Callable[[range], object]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], num_workers: int
) -> Iterator[Result]:
    """Yield ``work(chunk)`` of each chunk, in the order of the chunks.

    Args:
        title: of the progress bar.
        work: a function; where processes cannot be forked, one that can be pickled, too.
        chunks: ranges of numbers; the bar counts these.
        num_workers: processes; a single one, or a single chunk, is worked on in this process with all its threads.
    """
    workers = min(num_workers, len(chunks))
    with terminal_bar(desc=title, total=sum(map(len, chunks))) as bar:
        results = map(work, chunks) if workers <= 1 else _map_over_processes(title, work, chunks, workers)
        for chunk, result in zip(chunks, results, strict=True):
            bar.update(len(chunk))
            yield result


def _map_over_processes(
    title: str, work: Callable[[range], Result], chunks: Sequence[range], workers: int
) -> Iterator[Result]:
    load_scipy()
    kind = "fork" if "fork" in multiprocessing.get_all_start_methods() else None  # forked, they need no copy of data
    with ProcessPoolExecutor(workers, multiprocessing.get_context(kind), _start_worker, (work,)) as pool:
        try:
            yield from pool.map(_call, chunks)
        except BrokenProcessPool as error:
            raise InputError(
                f"{title}: one of {workers} processes was killed; it may have needed more memory: give it fewer cores, "
                "as by `taskset -c 0 python main.py ...`, which takes fewer processes"
            ) from error


def _start_worker(work: Callable[[range], object]) -> None:
    global _work
    _work = work
    begin_worker()
    threadpool_limits(1)  # BLAS has threads of its own


def _call(chunk: range) -> object:
    return _work(chunk)
