"""Facts derived from a loaded data set (dims, classes, sizes), and checks of its graphs, edges, labels and splits."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected

from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.data.dataset import SPLITS, GraphDataset, Summary
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.data.file_errors import graph_at
from graphgps_kmip.errors import DataError

log = logging.getLogger(__name__)
UNITS = {"graph": "graph", "link": "pair of nodes"}
ONE_COLUMN = ("classification", "link_ranking", "link_prediction")
CLASSES = ("classification", "subtoken_prediction")
LOOK_VERSION = 2  # raised when a look at every graph checks more: what was kept of earlier looks is then not used
MANY_CLASSES = 100  # from here on, a number of classes is doubted that is...
SPARSE_CLASSES = 10  # ...more than so many times the number of different labels
LOOKED_AT = 10  # graphs whose edges decide whether a data set counts as directed, as in GraphGPS


@dataclass(frozen=True, kw_only=True)
class DatasetInfo(Summary):
    """What models, tasks and reports need to know of a data set: its `Summary`, and these.

    Args:
        name: its title, for messages.
        level: "graph", "inductive_node", "node" or "link".
        sizes: samples that train, validate and test: graphs, or nodes at level "node".
    """

    name: str
    level: str
    sizes: tuple[int, int, int]

    @classmethod
    def of(cls, dataset: GraphDataset, record: DatasetRecord) -> DatasetInfo:
        """Look at every graph once, or at what was kept of that look (`GraphDataset.summary`)."""
        check_not_empty(dataset, record)
        sizes = _split_sizes(dataset, record)
        summary = dataset.summary or summarize(dataset, record)
        return cls(name=record.title, level=record.level, sizes=sizes, **asdict(summary))

    def describe(self) -> list[tuple[str, str]]:
        """Return rows (what, value) for people."""
        unit = "nodes" if self.level == "node" else "graphs"
        return [
            ("data set", self.name),
            (f"{unit} (train / val / test)", " / ".join(f"{size:,}" for size in self.sizes)),
            ("nodes of a graph", f"{self.mean_nodes:,.1f} on average, {self.max_nodes:,} at most"),
            ("edges of a graph", f"{self.mean_edges:,.1f} on average, {'directed' if self.directed else 'undirected'}"),
            ("features", f"{self.dim_in} of a node, {self.dim_edge or 'none'} of an edge"),
            ("outputs", f"{self.dim_out} for each {UNITS.get(self.level, 'node')}"),
        ]


def summarize(dataset: GraphDataset, record: DatasetRecord) -> Summary:
    """Look at every graph once; raises what `DatasetInfo.of` does."""
    nodes, edges, labels = [], [], torch.empty(0)
    widths: dict[str, tuple[int, str]] = {}  # columns of attributes, and the first graph that has them
    outputs, largest = 0, ""
    for number in terminal_bar(range(len(dataset)), f"{record.title}: looking at every graph"):
        where = f"{record.title}, {dataset.place(number)}"
        graph = graph_at(dataset.graphs, number, where)
        check_graph(graph, where)
        y = label_rows(graph, record, where)
        width = {key: columns(graph.get(key), where) for key in ("x", "edge_attr")}
        dim_out = _count_outputs(y, record, where)
        if record.task_type not in CLASSES:
            _check_targets(y, record, where)
        if record.task_type != "classification":
            width["y"] = dim_out
        elif record.features is None:
            labels = torch.cat([labels, y.flatten().unique()]).unique()
        for key, size in width.items():
            check_width(key, (size, where), widths.setdefault(key, (size, where)))
        if dim_out > outputs:
            outputs, largest = dim_out, where
        nodes.append(graph.num_nodes)
        edges.append(graph.num_edges)
    if len(labels) and outputs > max(MANY_CLASSES, SPARSE_CLASSES * len(labels)):  # each class is an output
        raise DataError(
            f"{largest}: y holds class {outputs - 1:,}, and there are {len(labels):,} different labels in all: number "
            "the classes from 0 without gaps, or set dataset.task_type regression"
        )
    graphs = [dataset.graphs[i] for i in range(min(LOOKED_AT, len(dataset)))]
    return Summary(
        graphs=len(dataset),
        dim_in=widths["x"][0],
        dim_edge=widths["edge_attr"][0],
        dim_out=outputs,
        mean_nodes=sum(nodes) / len(nodes),
        max_nodes=max(nodes),
        mean_edges=sum(edges) / len(edges),
        directed=not all(is_undirected(graph.edge_index, num_nodes=graph.num_nodes) for graph in graphs),
    )


def load_or_summarize(dataset: GraphDataset, record: DatasetRecord, folder: Path) -> Summary:
    """Return `summarize` of a data set, computed once and stored in the folder of its processed files."""
    basis = repr((LOOK_VERSION, record.level, record.task_type, record.features)).encode()
    path = folder / f"summary-{record.key.replace('/', '-')}-{hashlib.sha256(basis).hexdigest()[:12]}.pt"
    try:
        return Summary(**load_plain(path))
    except UnreadableFile:  # none yet, or a damaged one: it can always be made again
        summary = summarize(dataset, record)
    try:
        save_plain(path, asdict(summary))
    except OSError as error:
        log.warning("%s: %s cannot be written (%s): the next start looks anew", record.title, path, error.strerror)
    return summary


def check_not_empty(dataset: GraphDataset, record: DatasetRecord) -> None:
    """Raise DataError if a data set has no graphs."""
    if len(dataset) == 0:
        raise DataError(f"{record.title}: the data set has no graphs: check what its load(root) returns")


def _check_dense(value: Tensor, key: str, where: str) -> None:
    if value.layout != torch.strided or value.is_complex():
        kind = f"{str(value.layout).removeprefix('torch.')} {value.dtype}"
        raise DataError(f"{where}: {key} must be a dense tensor of real numbers, got {kind}")


def check_finite(value: Tensor, key: str, where: str, nan_allowed: bool = False) -> None:
    """Raise DataError if floats hold NaN, unless it is allowed, or infinite values; names the first."""
    if not value.is_floating_point():
        return
    wrong = value.isinf() if nan_allowed else ~value.isfinite()
    if not bool(wrong.any()):
        return
    first = wrong.nonzero()[0].tolist()
    kind = "NaN" if bool(value[tuple(first)].isnan()) else "an infinite value"
    place = ", ".join(f"{name} {index}" for name, index in zip(("row", "column"), first, strict=False))
    raise DataError(
        f"{where}: {key} holds {kind}{f' in {place}' if place else ''} "
        f"({int(wrong.sum()):,} of {value.numel():,} values): replace or remove these values"
    )


def _split_sizes(dataset: GraphDataset, record: DatasetRecord) -> tuple[int, int, int]:
    if record.level == "node" and dataset.splits is None:
        graph = dataset.graphs[0]
        if any(f"{split}_mask" not in graph for split in SPLITS) or len(dataset) > 1:
            raise DataError(f"{record.title}: level 'node' needs one graph with train_mask, val_mask and test_mask")
        parts = [graph[f"{split}_mask"].nonzero() for split in SPLITS]
    elif dataset.splits is None:
        raise DataError(f"{record.title}: the graphs are not divided: give GraphDataset its splits")
    else:
        parts = list(dataset.splits)
    for split, part in zip(SPLITS, parts, strict=True):
        if len(part) == 0:
            raise DataError(f"{record.title}: the {split} split is empty: each split needs at least one sample")
        if dataset.splits is not None and (int(part.min()) < 0 or int(part.max()) >= len(dataset)):
            raise DataError(f"{record.title}: the {split} split names graphs outside 0..{len(dataset) - 1}")
    seen, counts = torch.cat([part.flatten() for part in parts]).unique(return_counts=True)
    if bool((counts > 1).any()):
        unit = "node" if record.level == "node" else "graph"
        twice = int(seen[counts > 1][0])
        names = " and ".join(split for split, part in zip(SPLITS, parts, strict=True) if bool((part == twice).any()))
        where = f"{unit} {twice:,} of {record.title}" if record.level == "node" else dataset.place(twice)
        raise DataError(
            f"{record.title}: {where} is in the splits more than once ({names}): a {unit} must train, validate or test"
        )
    return tuple(len(part) for part in parts)


def check_graph(graph: Data, where: str) -> None:
    """Raise DataError unless a graph has nodes with finite features, edges between them, and rows for each of both."""
    if graph.x is None:
        raise DataError(f"{where}: x is missing: set node features (N, C), for instance a column of ones")
    nodes = graph.x.size(0)
    _check_pairs(graph.edge_index, "edge_index", nodes, where)
    num_edges = graph.edge_index.size(1)
    rows = {"x": nodes, "pos": nodes, "edge_attr": num_edges, **{f"{split}_mask": nodes for split in SPLITS}}
    for key, number in rows.items():
        value = graph.get(key)
        if isinstance(value, Tensor):
            _check_dense(value, key, where)
            check_finite(value, key, where)
            if value.size(0) != number:
                unit = "edges" if key == "edge_attr" else "nodes"
                raise DataError(f"{where}: {key} has {value.size(0)} rows for {number} {unit}: give each one row")


def _check_pairs(pairs: Tensor | None, key: str, num_nodes: int, where: str) -> None:
    if pairs is None or pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
        raise DataError(f"{where}: {key} must be int64 (2, E), torch.empty(2, 0, dtype=torch.long) for none")
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= num_nodes):
        raise DataError(f"{where}: {key} names nodes outside 0..{num_nodes - 1}: number the nodes from 0")


def columns(features: Tensor | None, where: str) -> int:
    """Return the columns of node or edge features; 0 for none."""
    if features is None:
        return 0
    if features.dim() > 2:
        raise DataError(f"{where}: features must be (rows, columns), got shape {tuple(features.shape)}: flatten them")
    return features.size(1) if features.dim() == 2 else 1


def label_rows(graph: Data, record: DatasetRecord, where: str) -> Tensor:
    """Return the labels as (rows, columns), one row for each graph, labelled node or labelled pair of nodes."""
    key = "edge_label" if record.level == "link" else "y"
    if graph.get(key) is None:
        raise DataError(f"{where}: {key} is missing: set the label of the graph, or of each node or pair of nodes")
    y = torch.atleast_1d(torch.as_tensor(graph[key]))
    _check_dense(y, key, where)
    if y.dim() > 2:
        raise DataError(f"{where}: {key} must be (rows, columns), got shape {tuple(y.shape)}: flatten it")
    y = y[:, None] if y.dim() == 1 else y
    rows = 1 if record.level == "graph" else graph.num_nodes
    if record.level == "link":
        _check_pairs(graph.get("edge_label_index"), "edge_label_index", graph.num_nodes, where)
        rows = graph.edge_label_index.size(1)
    if y.size(0) != rows or (record.task_type in ONE_COLUMN and y.size(1) != 1):
        shape = f"({rows},)" if record.task_type in ONE_COLUMN else f"({rows}, number of targets)"
        raise DataError(f"{where}: {key} must have shape {shape}, got {tuple(torch.as_tensor(graph[key]).shape)}")
    if record.level == "node":  # nodes outside all splits may be without a label
        masks = [graph[f"{split}_mask"] for split in SPLITS]
        y = y[torch.stack([mask.reshape(len(mask), -1).any(1) for mask in masks]).any(0)]
    return y


def _check_targets(labels: Tensor, record: DatasetRecord, where: str) -> None:
    """Raise DataError for labels that no loss can use; NaN says "unknown" where the record or its task allows it."""
    several = record.task_type == "classification_multilabel"
    key = "edge_label" if record.level == "link" else "y"
    check_finite(labels, key, where, nan_allowed=several or record.unknown_targets)
    wrong = labels[~((labels == 0) | (labels == 1) | labels.isnan())]
    if several and len(wrong):
        raise DataError(
            f"{where}: {key} holds {wrong[0].item():g}: for {record.task_type} labels are 0, 1, or NaN for unknown"
        )


def _count_outputs(labels: Tensor, record: DatasetRecord, where: str) -> int:
    if record.task_type not in CLASSES:
        return labels.size(1)
    wrong = labels[~((labels >= 0) & (labels.long().to(labels.dtype) == labels))]  # NaN fails >= 0
    if len(wrong):
        raise DataError(
            f"{where}: class labels must be whole numbers from 0, got {wrong[0].item():g}: number the classes anew, or "
            "predict numbers (task_type regression; of a folder dataset.task_type)"
        )
    present = int(labels.max()) + 1 if labels.numel() else 1
    classes = record.features.classes if record.features else present
    if present > classes:
        raise DataError(f"{where}: label {present - 1} found, but its record says {classes} classes")
    return classes


def check_alike(graphs: Iterable[tuple[str, Data]]) -> None:
    """Raise DataError unless all graphs, each after its name, have the attributes, types and columns of the first."""
    first, expected = "", {}
    for place, graph in graphs:
        kind = {key: _columns(value) for key, value in graph.to_dict().items()}
        first, expected = (first, expected) if first else (place, kind)
        for key in dict.fromkeys((*expected, *kind)):
            if key not in kind or key not in expected:
                has, lacks = (place, first) if key in kind else (first, place)
                raise DataError(f"{lacks}: {key} is missing, and {has} has it: give it to every graph, or to none")
            if key not in ("edge_index", "edge_label_index"):
                check_width(key, (kind[key], place), (expected[key], first))


def check_width(key: str, width: tuple[int | str, str], expected: tuple[int | str, str]) -> None:
    """Raise DataError if the columns of an attribute differ in two graphs, given each with the name of its graph."""
    if width[0] != expected[0]:
        (here, place), (there, first) = width, expected
        raise DataError(
            f"{place}: graphs differ in the columns of {key}: {here or 'none'} here, {there or 'none'} in {first}: "
            "give all the same"
        )


def _columns(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return " x ".join(map(str, value.shape[1:])) or "none"
