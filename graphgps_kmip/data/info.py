"""Facts derived from a loaded data set (dims, classes, sizes), and the checks that a user's own data must pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected

from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.data.record import DatasetRecord

LOOKED_AT = 10  # graphs whose edges decide whether a data set counts as directed, as in GraphGPS


@dataclass(frozen=True)
class DatasetInfo:
    """What models, tasks and reports need to know of a data set.

    Args:
        name: its title, for messages.
        level: "graph", "inductive_node" or "node".
        dim_in: columns of ``x``.
        dim_edge: columns of ``edge_attr``; 0 without edge features.
        dim_out: number of classes (2 for binary), of label columns, or of targets.
        sizes: samples that train, validate and test: graphs, or nodes at level "node".
        mean_nodes: mean number of nodes of a graph.
        max_nodes: that of the largest graph.
        mean_edges: mean number of directed edges of a graph.
        directed: one of the first `LOOKED_AT` graphs has an edge without its reverse.
    """

    name: str
    level: str
    dim_in: int
    dim_edge: int
    dim_out: int
    sizes: tuple[int, int, int]
    mean_nodes: float
    max_nodes: int
    mean_edges: float
    directed: bool

    @classmethod
    def of(cls, dataset: GraphDataset, record: DatasetRecord) -> DatasetInfo:
        """Look at every graph once.

        Raises:
            ValueError: no graphs, an empty split, missing or misshapen x, y, edge_index or edge_attr, edges to nodes
                that do not exist, class labels that are NaN, negative or fractional.
        """
        if len(dataset) == 0:
            raise ValueError(f"{record.title}: the data set has no graphs: check what its load(root) returns")
        sizes = _split_sizes(dataset, record)
        widths, labels, nodes, edges = set(), [], [], []
        for number, graph in enumerate(dataset.graphs):
            where = f"{record.title}, graph {number}"
            _check_edges(graph, where)
            widths.add((_columns(graph.x, where), _columns(graph.edge_attr, where)))
            labels.append(_labels(graph, record, where))
            nodes.append(graph.num_nodes)
            edges.append(graph.num_edges)
        if len(widths) > 1 or len({label.size(1) for label in labels}) > 1:
            raise ValueError(f"{record.title}: graphs differ in the columns of x, edge_attr or y: give all the same")
        dim_in, dim_edge = widths.pop()
        first = [dataset.graphs[i] for i in range(min(LOOKED_AT, len(dataset)))]
        return cls(
            name=record.title,
            level=record.level,
            dim_in=dim_in,
            dim_edge=dim_edge,
            dim_out=_dim_out(torch.cat(labels), record),
            sizes=sizes,
            mean_nodes=sum(nodes) / len(nodes),
            max_nodes=max(nodes),
            mean_edges=sum(edges) / len(edges),
            directed=not all(is_undirected(graph.edge_index, num_nodes=graph.num_nodes) for graph in first),
        )

    def describe(self) -> list[tuple[str, str]]:
        """Return rows (what, value) for people."""
        unit = "nodes" if self.level == "node" else "graphs"
        return [
            ("data set", self.name),
            (f"{unit} (train / val / test)", " / ".join(f"{size:,}" for size in self.sizes)),
            ("nodes of a graph", f"{self.mean_nodes:,.1f} on average, {self.max_nodes:,} at most"),
            ("edges of a graph", f"{self.mean_edges:,.1f} on average, {'directed' if self.directed else 'undirected'}"),
            ("features", f"{self.dim_in} of a node, {self.dim_edge or 'none'} of an edge"),
            ("outputs", f"{self.dim_out} for each {'graph' if self.level == 'graph' else 'node'}"),
        ]


def _split_sizes(dataset: GraphDataset, record: DatasetRecord) -> tuple[int, int, int]:
    if record.level == "node":
        graph = dataset.graphs[0]
        if any(f"{split}_mask" not in graph for split in SPLITS) or len(dataset) > 1:
            raise ValueError(f"{record.title}: level 'node' needs one graph with train_mask, val_mask and test_mask")
        parts = [graph[f"{split}_mask"].nonzero() for split in SPLITS]
    elif dataset.splits is None:
        raise ValueError(f"{record.title}: the graphs are not divided: give GraphDataset its splits")
    else:
        parts = list(dataset.splits)
    for split, part in zip(SPLITS, parts, strict=True):
        if len(part) == 0:
            raise ValueError(f"{record.title}: the {split} split is empty: each split needs at least one sample")
        if record.level != "node" and (int(part.min()) < 0 or int(part.max()) >= len(dataset)):
            raise ValueError(f"{record.title}: the {split} split names graphs outside 0..{len(dataset) - 1}")
    if record.level != "node" and len(torch.cat(parts).unique()) < sum(len(part) for part in parts):
        raise ValueError(f"{record.title}: a graph stands twice in the splits: each must train, validate or test once")
    return tuple(len(part) for part in parts)


def _check_edges(graph: Data, where: str) -> None:
    if graph.x is None:
        raise ValueError(f"{where}: x is missing: set node features (N, C), for instance a column of ones")
    edges = graph.edge_index
    if edges is None or edges.dim() != 2 or edges.size(0) != 2 or edges.dtype != torch.int64:
        raise ValueError(f"{where}: edge_index must be int64 (2, E), torch.empty(2, 0, dtype=torch.long) for no edges")
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= graph.x.size(0)):
        raise ValueError(f"{where}: edge_index names nodes outside 0..{graph.x.size(0) - 1}: number the nodes from 0")
    if graph.edge_attr is not None and graph.edge_attr.size(0) != edges.size(1):
        rows = graph.edge_attr.size(0)
        raise ValueError(f"{where}: edge_attr has {rows} rows for {edges.size(1)} edges: give each edge one")


def _columns(features: Tensor | None, where: str) -> int:
    if features is None:
        return 0
    if features.dim() > 2:
        raise ValueError(f"{where}: features must be (rows, columns), got shape {tuple(features.shape)}: flatten them")
    return features.size(1) if features.dim() == 2 else 1


def _labels(graph: Data, record: DatasetRecord, where: str) -> Tensor:
    """Return the labels as (rows, columns), one row for each graph or labelled node."""
    if graph.y is None:
        raise ValueError(f"{where}: y is missing: set the label of the graph, or of each node")
    y = torch.atleast_1d(torch.as_tensor(graph.y))
    y = y[:, None] if y.dim() == 1 else y
    rows = 1 if record.level == "graph" else graph.num_nodes
    if y.size(0) != rows or (record.task_type == "classification" and y.size(1) != 1):
        wanted = f"({rows},)" if record.task_type == "classification" else f"({rows}, number of targets)"
        raise ValueError(f"{where}: y must have shape {wanted}, got {tuple(torch.as_tensor(graph.y).shape)}")
    if record.level == "node":  # nodes outside all splits may be without a label
        y = y[torch.stack([graph[f"{split}_mask"] for split in SPLITS]).any(0)]
    return y


def _dim_out(labels: Tensor, record: DatasetRecord) -> int:
    if record.task_type != "classification":
        return labels.size(1)
    if not bool((labels >= 0).all()) or not torch.equal(labels.long().to(labels.dtype), labels):  # NaN fails >= 0
        raise ValueError(f"{record.title}: class labels must be whole numbers from 0, got NaN or others")
    classes = int(labels.max()) + 1
    known = record.features.classes if record.features else classes
    if classes > known:
        raise ValueError(f"{record.title}: label {classes - 1} found, but its record says {known} classes")
    return known
