"""Graphs on disk: rows of tensors in SQLite files, which worker processes may read; point clouds with k-NN graphs."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, SQLiteDatabase

from graphgps_kmip.common.atomic_write import remove_leftovers, replacing
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, Summary
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.encoding.knn import edge_lengths, edges_from, nearest_neighbors
from graphgps_kmip.errors import DataError, InputError

log = logging.getLogger(__name__)
TABLE = "clouds"
BATCH = 32  # rows written at once

Row = dict[str, Tensor]


class RowFile:
    """Rows of tensors that are written once and then only read; each process opens its own connection.

    ``schema`` is dtype and size of each tensor of a row, as torch_geometric's `Database` takes it.
    """

    def __init__(self, path: str | Path, schema: dict[str, Any]) -> None:
        self.path, self.schema = str(path), schema
        self._connections: dict[int, SQLiteDatabase] = {}

    @property
    def database(self) -> SQLiteDatabase:
        """This process's own read-only connection."""
        # A forked worker has its parent's connection, too: it must neither use nor close it.
        if os.getpid() not in self._connections:
            self._connections[os.getpid()] = _ReadOnly(self.path, TABLE, self.schema)
        return self._connections[os.getpid()]

    def __getitem__(self, index: int) -> Row:
        try:
            return self.database.get(index)
        except (sqlite3.Error, TypeError, RuntimeError) as error:  # TypeError: no such row; RuntimeError: half a row
            fix = f"remove the folder {os.path.dirname(self.path)} and start again"
            raise InputError(f"{self.path}: row {index} cannot be read ({error}): {fix}") from error

    def write(self, rows: Iterable[Row]) -> None:
        """Write the file anew, a few rows at a time; it appears under its name when it is complete."""
        rows, count = iter(rows), 0
        remove_leftovers(Path(self.path).parent)
        with replacing(Path(self.path)) as part:
            with closing(SQLiteDatabase(str(part), TABLE, self.schema)) as database:
                while batch := list(islice(rows, BATCH)):
                    database.multi_insert(range(count, count + len(batch)), batch)
                    count += len(batch)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connections": {}}


class _ReadOnly(SQLiteDatabase):
    def connect(self) -> None:
        path = quote(os.path.abspath(self.path))
        self._connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        self._cursor = self._connection.cursor()


class RowGraphs:
    """Graphs made of rows on disk when they are asked for.

    Args:
        path: file of the rows.
        schema: see `RowFile`.
        rows: yields all rows; called if the file is not there yet.
        numbers: row of each graph.
        make: returns the graph of a row.
    """

    def __init__(
        self,
        path: Path,
        schema: dict[str, Any],
        rows: Callable[[], Iterable[Row]],
        numbers: Sequence[int],
        make: Callable[[Row], Data],
    ) -> None:
        self.rows, self.numbers, self.make = RowFile(path, schema), numbers, make
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            self.rows.write(rows())

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Data:
        return self.make(self.rows[int(self.numbers[index])])


class Cloud(NamedTuple):
    """One cloud of a raw file: features (N, C), labels (N,) or (1,), "train", "val" or "test", and the file."""

    x: np.ndarray
    y: np.ndarray
    part: str
    path: Path


@dataclass(frozen=True)
class CloudSource:
    """How raw clouds are read, and what their graphs are.

    Args:
        read: yields the clouds of the folder ``raw``, always in one order. If none validates, as many random training
            clouds do as there are test clouds, the same in every run.
        num_features: columns C of ``x``.
        positions: first of the three columns of ``x`` that are coordinates.
        num_classes: labels are 0 to ``num_classes`` - 1.
        k: in-edges of each point.
    """

    read: Callable[[Path], Iterator[Cloud]]
    num_features: int
    positions: int
    num_classes: int
    k: int


def _check_cloud(cloud: Cloud, source: CloudSource) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.ascontiguousarray(cloud.x, np.float32), np.asarray(cloud.y)
    if x.ndim != 2 or x.shape[1] != source.num_features or not len(x):
        raise InputError(f"expected points with {source.num_features} columns, found shape {x.shape}")
    if not np.isfinite(x).all():
        raise InputError("a value is NaN or infinite")
    if not ((y >= 0) & (y < source.num_classes) & (y % 1 == 0)).all():  # NaN fails, too
        raise InputError(f"labels must be whole numbers from 0 to {source.num_classes - 1}")
    return x, y.astype(np.int32)


def find_listed_file(title: str, raw: Path, name: str, listing: str) -> Path:
    """Return the path of a raw file that another raw file lists."""
    if not (raw / name).is_file():
        raise DataError(f"{title}: raw/{name} is missing, and raw/{listing} lists it: put both there from one download")
    return raw / name


def parse_table(lines: list[str], columns: int) -> np.ndarray:
    """Return the numbers of lines of text, (lines, columns) float32."""
    values = np.loadtxt(lines, np.float32, ndmin=2) if lines else np.empty((0, columns), np.float32)
    if values.shape[1] != columns:
        raise InputError(f"expected {columns} columns, found {values.shape[1]}")
    return values


class CloudGraphs(Sequence[Data]):
    """Clouds in ``root/processed``, made of ``root/raw`` first; each item is a graph ``x``, ``pos``, ``y``, k-NN edges.

    Args:
        root: folder with ``raw`` and ``processed``.
        source: what to read, and the graphs' k.
        distance: the edges' lengths as ``edge_attr`` (E, 1).
        cache: keep the neighbours on disk (int32, 4 N k bytes a cloud).
    """

    def __init__(self, root: str, source: CloudSource, distance: bool = False, cache: bool = False) -> None:
        self.source, self.distance, self.cache = source, distance, cache
        folder, integers = Path(root, "processed"), {"dtype": torch.int32, "size": (-1,)}
        points = {"x": {"dtype": torch.float32, "size": (-1, source.num_features)}, "y": integers}
        self._points = RowFile(folder / "points.db", points)
        self._neighbors = RowFile(folder / f"neighbors-{source.k}.db", {"neighbors": integers})
        if not Path(self._points.path).exists() or not (folder / "facts.npz").exists():
            folder.mkdir(exist_ok=True)
            self._write(Path(root, "raw"), folder / "facts.npz")
        with np.load(folder / "facts.npz") as facts:
            self.num_points = facts["num_points"]
            self.splits = tuple(facts[part] for part in SPLITS)
        self.points(len(self) - 1)  # a file that was cut off fails here rather than in a worker
        if cache and not os.path.exists(self._neighbors.path):
            log.info("storing the %d neighbours of each point of %s clouds", source.k, f"{len(self):,}")
            neighbors = (nearest_neighbors(self.points(i).pos.numpy(), source.k) for i in range(len(self)))
            self._neighbors.write({"neighbors": torch.from_numpy(each.astype(np.int32))} for each in neighbors)

    def _write(self, raw: Path, facts: Path) -> None:
        sizes, parts = [], []

        def rows() -> Iterator[Row]:
            for cloud in self.source.read(raw):
                with reading(cloud.path):
                    x, y = _check_cloud(cloud, self.source)
                sizes.append(len(x))
                parts.append(SPLITS.index(cloud.part))
                yield {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}

        self._points.write(rows())
        train, val, test = (np.flatnonzero(np.array(parts) == part) for part in range(len(SPLITS)))
        if not len(val):
            if len(train) <= len(test):
                raise InputError(f"{len(test)} of {len(train)} training clouds cannot validate: are files missing?")
            val = np.sort(np.random.default_rng(0).permutation(train)[: len(test)])  # 0: whatever the run's seed
            train = np.setdiff1d(train, val)
        np.savez(facts, num_points=np.array(sizes), train=train, val=val, test=test)

    def __len__(self) -> int:
        return len(self.num_points)

    def points(self, index: int) -> Data:
        """Return one cloud without edges."""
        row, first = self._points[index], self.source.positions
        # A copy: a transform may change pos in place, but not x with it.
        return Data(x=row["x"], pos=row["x"][:, first : first + 3].clone(), y=row["y"].long())

    def __getitem__(self, index: int) -> Data:
        number = range(len(self))[index]  # counts from the end, too
        data = self.points(number)
        if self.cache:
            neighbors = self._neighbors[number]["neighbors"].numpy().reshape(data.num_nodes, -1)
        else:
            neighbors = nearest_neighbors(data.pos.numpy(), self.source.k, num_workers=1)  # loaders have workers
        data.edge_index = edges_from(neighbors)
        if self.distance:
            data.edge_attr = edge_lengths(data.pos, data.edge_index)
        return data

    @property
    def summary(self) -> Summary:
        """What a look at every graph would tell."""
        edges = self.num_points * np.minimum(self.source.k, self.num_points - 1)
        return Summary(
            graphs=len(self),
            dim_in=self.source.num_features,
            dim_edge=int(self.distance),
            dim_out=self.source.num_classes,
            mean_nodes=float(self.num_points.mean()),
            max_nodes=int(self.num_points.max()),
            mean_edges=float(edges.mean()),
            directed=True,
        )


def open_clouds(home: str, source: CloudSource, distance: bool = False, cache: bool = False) -> GraphDataset:
    """Return the clouds below a folder with their splits and summary; arguments as of `CloudGraphs`."""
    clouds = CloudGraphs(home, source, distance, cache)
    return GraphDataset(clouds, clouds.splits, clouds.summary)
