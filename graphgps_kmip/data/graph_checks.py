"""Checks of loaded graphs: attributes, edges, labels, splits; each error says which graph, what is wrong, the fix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord
from graphgps_kmip.errors import DataError


def check_dense(value: Tensor, key: str, where: str) -> None:
    """Raise DataError unless a tensor is dense, of real numbers, and holds its values."""
    if value.layout != torch.strided or value.is_nested or value.is_complex() or value.is_quantized or value.is_meta:
        kind = "nested" if value.is_nested else f"{str(value.layout).removeprefix('torch.')} {value.dtype}"
        raise DataError(f"{where}: {key} must be a dense tensor of real numbers, got {kind}, device {value.device}")


def check_finite(value: Tensor | None, key: str, where: str, nan_allowed: bool = False) -> None:
    """Raise DataError if a tensor holds NaN or infinite values, naming the first.

    Args:
        value: the tensor; None and whole numbers pass.
        key: name of the attribute.
        where: data set, graph and file, for the error.
        nan_allowed: NaN means "unknown", as for labels; only infinity is refused.
    """
    if value is None or not value.is_floating_point():
        return
    wrong = value.isinf() if nan_allowed else ~value.isfinite()
    if not bool(wrong.any()):
        return
    first = wrong.nonzero()[0].tolist()
    found = float(value[tuple(first)])
    names = ("row", "column") if len(first) <= 2 else tuple(f"dimension {number}" for number in range(len(first)))
    place = ", ".join(f"{name} {index}" for name, index in zip(names, first, strict=False))
    raise DataError(
        f"{where}: {key} holds {'NaN' if found != found else 'an infinite value'}{f' in {place}' if place else ''} "
        f"({int(wrong.sum()):,} of {value.numel():,} values): replace or remove these values"
    )


ONE_COLUMN = ("classification", "link_ranking", "link_prediction")
CLASSES = ("classification", "subtoken_prediction")


def split_sizes(dataset: GraphDataset, record: DatasetRecord) -> tuple[int, int, int]:
    """Return how many samples train, validate and test.

    Raises:
        ValueError: there is no split, a part is empty, names what is not there, or shares samples with another.
    """
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
    edges = graph.edge_index
    if edges is None or edges.dim() != 2 or edges.size(0) != 2 or edges.dtype != torch.int64:
        raise DataError(f"{where}: edge_index must be int64 (2, E), torch.empty(2, 0, dtype=torch.long) for no edges")
    nodes = graph.x.size(0)
    rows = {"x": nodes, "pos": nodes, "edge_attr": edges.size(1), **{f"{split}_mask": nodes for split in SPLITS}}
    for key, number in rows.items():
        value = graph.get(key)
        if isinstance(value, Tensor):
            check_dense(value, key, where)
            check_finite(value, key, where)
            if value.size(0) != number:
                unit = "edges" if key == "edge_attr" else "nodes"
                raise DataError(f"{where}: {key} has {value.size(0)} rows for {number} {unit}: give each one row")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= nodes):
        raise DataError(f"{where}: edge_index names nodes outside 0..{nodes - 1}: number the nodes from 0")


def columns(features: Tensor | None, where: str) -> int:
    """Return the columns of node or edge features; 0 for none."""
    if features is None:
        return 0
    if features.dim() > 2:
        raise DataError(f"{where}: features must be (rows, columns), got shape {tuple(features.shape)}: flatten them")
    return features.size(1) if features.dim() == 2 else 1


def labels_of(graph: Data, record: DatasetRecord, where: str) -> Tensor:
    """Return the labels as (rows, columns), one row for each graph, labelled node or labelled pair of nodes."""
    key = "edge_label" if record.level == "link" else "y"
    if graph.get(key) is None:
        raise DataError(f"{where}: {key} is missing: set the label of the graph, or of each node or pair of nodes")
    y = torch.atleast_1d(torch.as_tensor(graph[key]))
    check_dense(y, key, where)
    if y.dim() > 2:
        raise DataError(f"{where}: {key} must be (rows, columns), got shape {tuple(y.shape)}: flatten it")
    y = y[:, None] if y.dim() == 1 else y
    rows = 1 if record.level == "graph" else graph.num_nodes
    if record.level == "link":
        pairs = graph.get("edge_label_index")
        if pairs is None or pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
            raise DataError(f"{where}: edge_label_index must be int64 (2, L), the pairs of nodes that have a label")
        if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= graph.num_nodes):
            raise DataError(f"{where}: edge_label_index names nodes outside 0..{graph.num_nodes - 1}")
        rows = pairs.size(1)
    if y.size(0) != rows or (record.task_type in ONE_COLUMN and y.size(1) != 1):
        wanted = f"({rows},)" if record.task_type in ONE_COLUMN else f"({rows}, number of targets)"
        raise DataError(f"{where}: {key} must have shape {wanted}, got {tuple(torch.as_tensor(graph[key]).shape)}")
    if record.level == "node":  # nodes outside all splits may be without a label
        masks = [graph[f"{split}_mask"] for split in SPLITS]
        y = y[torch.stack([mask.reshape(len(mask), -1).any(1) for mask in masks]).any(0)]
    return y


def check_targets(labels: Tensor, record: DatasetRecord, where: str) -> None:
    """Raise DataError for labels that no loss can use: infinite ones, unknown targets, label columns beyond 0 and 1.

    NaN says "unknown" in the columns of classification_multilabel, and where the record has ``unknown_targets``.
    """
    several = record.task_type == "classification_multilabel"
    key = "edge_label" if record.level == "link" else "y"
    check_finite(labels, key, where, nan_allowed=several or record.unknown_targets)
    known = labels[~labels.isnan()] if labels.is_floating_point() else labels
    if several and not bool(((known == 0) | (known == 1)).all()):
        wrong = known[(known != 0) & (known != 1)][0].item()
        raise DataError(f"{where}: {key} holds {wrong:g}: for {record.task_type} labels are 0, 1, or NaN for unknown")


def dim_out_of(labels: Tensor, record: DatasetRecord, where: str) -> int:
    """Return the number of outputs that the labels of one graph ask for."""
    if record.task_type not in CLASSES:
        return labels.size(1)
    whole = (labels >= 0) & (labels.long().to(labels.dtype) == labels)  # NaN fails >= 0
    if not bool(whole.all()):
        wrong = labels[~whole][0].item()
        raise DataError(
            f"{where}: class labels must be whole numbers from 0, got {wrong:g}: number the classes anew, or predict "
            "numbers (task_type regression; of a folder dataset.task_type)"
        )
    classes = int(labels.max()) + 1 if labels.numel() else 1
    known = record.features.classes if record.features else classes
    if classes > known:
        raise DataError(f"{where}: label {classes - 1} found, but its record says {known} classes")
    return known


def check_alike(graphs: Iterable[tuple[str, Data]]) -> None:
    """Raise DataError unless all graphs, each after its name, have the attributes, types and columns of the first."""
    first, wanted = "", {}
    for place, graph in graphs:
        kind = {key: _columns(value) for key, value in graph.to_dict().items()}
        first, wanted = (first, wanted) if first else (place, kind)
        for key in dict.fromkeys((*wanted, *kind)):
            if key not in kind or key not in wanted:
                has, lacks = (place, first) if key in kind else (first, place)
                raise DataError(f"{lacks}: {key} is missing, and {has} has it: give it to every graph, or to none")
            if kind[key] != wanted[key] and key != "edge_index":
                raise DataError(
                    f"{place}: graphs differ in the columns of {key}: {kind[key]} here, {wanted[key]} in {first}: give "
                    "all the same"
                )


def _columns(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return " x ".join(map(str, value.shape[1:])) or "none"
