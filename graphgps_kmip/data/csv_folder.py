"""CSV tables of a user's own graphs, in the columns of ogb's raw files, and split files; every row is checked.

::

    num-node-list.csv, num-edge-list.csv    one number for each graph
    edge.csv                                source, target of each edge: nodes of its graph, from 0
    node-feat.csv, edge-feat.csv            numbers; that of edges may be absent
    graph-label.csv, node-label.csv or edge-label.csv
    split/train.csv, valid.csv, test.csv    numbers of the graphs (of one graph: of its nodes or edges), from 0

No table has a header, each may be ``.csv.gz``, and a split folder may have one folder more (``split/scaffold``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.data.dataset import Splits
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.ogb_tables import SPLIT, table_graphs
from graphgps_kmip.errors import DataError

ENDINGS = (".csv", ".csv.gz")
INDEX = tuple(f"num-node-list{ending}" for ending in ENDINGS)  # the table that makes a folder one of tables
LABELS = ("graph-label", "node-label", "edge-label")
# Table -> what its rows are, and the table that says how many.
ROWS = {
    "num-node-list": ("graph", "num-node-list"),
    "num-edge-list": ("graph", "num-node-list"),
    "edge": ("edge", "num-edge-list"),
    "node-feat": ("node", "num-node-list"),
    "edge-feat": ("edge", "num-edge-list"),
    "graph-label": ("graph", "num-node-list"),
    "node-label": ("node", "num-node-list"),
    "edge-label": ("edge", "num-edge-list"),
}
WHOLE = ("num-node-list", "num-edge-list", "edge")
REQUIRED = (*WHOLE, "node-feat")


def read_tables(index: Path) -> list[Data]:
    """Return the graphs of the tables next to ``num-node-list.csv``, the file ``index``.

    A label of a graph, node or edge is ``y``, or ``edge_label`` of the pairs ``edge_label_index``, which are the edges.
    """
    folder = index.parent
    files = {name: file for name in ROWS for file in _files(folder, name)}
    _check_names(folder, files)
    tables = {name: _read(file, whole=name in WHOLE) for name, file in files.items()}
    for name, table in tables.items():
        unit, counts = ROWS[name]
        number = len(tables[counts]) if unit == "graph" else int(tables[counts][:, 0].sum())
        if len(table) != number:
            rows = f"{len(table):,} rows for {number:,} {unit}s ({files[counts].name})"
            raise DataError(f"{files[name]}: {rows}: give each {unit} one row")
    _check_edges(files["edge"], tables["edge"], *(tables[name][:, 0] for name in WHOLE[:2]))
    graphs = list(table_graphs(tables, one_way=True))
    for graph in graphs:
        if "edge_label" in graph:
            graph.edge_label_index = graph.edge_index
        for key in ("y", "edge_label"):
            if key in graph and graph[key].size(1) == 1:
                graph[key] = graph[key].flatten()
    return graphs


def read_split(folder: Path, number: int) -> Splits | None:
    """Return the split in ``folder/split`` or a folder in it, of ``number`` samples; None if there is none."""
    home = folder / "split"
    if not home.is_dir():
        return None
    inside = sorted(path for path in home.glob("[!.]*/"))
    if len(inside) > 1:
        names = ", ".join(path.name for path in inside)
        raise DataError(f"{home}: there are several splits, {names}: keep one of them there")
    home = inside[0] if inside else home
    parts = []
    for name in SPLIT.values():
        files = _files(home, name)
        if not files:
            raise DataError(f"{home}: {name}.csv is missing: give train.csv, valid.csv and test.csv")
        table = _read(files[0], whole=True)
        rows = table[:, 0]
        wrong = np.flatnonzero(rows >= number)
        if len(wrong):
            line = f"{files[0]}, line {wrong[0] + 1}"
            raise DataError(f"{line}: {rows[wrong[0]]}, and there are 0..{number - 1}: number from 0")
        parts.append(torch.from_numpy(rows))
    return Splits(*parts)


def _files(folder: Path, name: str) -> list[Path]:
    return [path for ending in ENDINGS if (path := folder / f"{name}{ending}").is_file()][:1]


def _check_names(folder: Path, files: dict[str, Path]) -> None:
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(".gz").removesuffix(".csv")
        near = near_misses(name, ROWS) if path.name.endswith(ENDINGS) and name not in ROWS else ""
        if near:
            raise DataError(f"{path}: no table has this name.{near} Rename it, or move it away")
    for name in REQUIRED:
        if name not in files:
            hint = ": without features, write a column of ones" if name == "node-feat" else ""
            raise DataError(f"{folder / name}.csv is missing{hint}")
    labels = [files[name].name for name in LABELS if name in files]
    if len(labels) > 1:
        raise DataError(f"{folder}: {' and '.join(labels)} are both there: keep that of the labels to predict")


def _read(file: Path, whole: bool) -> np.ndarray:
    """Return the numbers (rows, columns), int64 or float64; NaN where a label is not known; refuse all other cells."""
    import pandas as pd

    with reading(file):
        try:
            frame = pd.read_csv(file, header=None, skip_blank_lines=False)
        except pd.errors.EmptyDataError:  # of graphs without edges
            return np.empty((0, 2), np.int64)
    is_label = file.name.startswith(LABELS) and frame.shape[1] > 1  # of several labels some may be unknown
    while len(frame) and not is_label and frame.iloc[-1].isna().all():  # blank lines at the end
        frame = frame.iloc[:-1]
    numbers = frame.apply(pd.to_numeric, errors="coerce")
    columns = numbers.to_numpy()
    wrong = numbers.isna().to_numpy() & frame.notna().to_numpy()
    wrong |= False if is_label else numbers.isna().to_numpy()
    if whole:
        wrong |= ~((columns >= 0) & (columns == np.floor(columns)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        cell = frame.iat[row, column]
        text = "nothing" if pd.isna(cell) else repr(cell.item() if hasattr(cell, "item") else cell)[:80]
        kind = "a whole number from 0" if whole else "a number"
        header = ": no table has a header, delete this line" if row == 0 and isinstance(cell, str) else ""
        raise DataError(f"{file}, line {row + 1}: column {column} must hold {kind}, got {text}{header}")
    is_whole = columns.dtype.kind in "iub" or whole
    return columns.astype(np.int64 if is_whole else np.float64)


def _check_edges(file: Path, table: np.ndarray, nodes: np.ndarray, edges: np.ndarray) -> None:
    if table.shape[1] != 2:
        raise DataError(f"{file}: an edge has 2 columns, source and target, got {table.shape[1]}")
    graph = np.repeat(np.arange(len(nodes)), edges)
    wrong = np.argwhere(table >= nodes[graph][:, None])
    if len(wrong):
        row, column = wrong[0]
        number = graph[row]
        raise DataError(
            f"{file}, line {row + 1}: node {table[row, column]} is not there: graph {number} has nodes "
            f"0..{nodes[number] - 1}: number the nodes of each graph from 0"
        )
