"""Facts derived from a loaded data set (dims, classes, sizes), and the checks that a user's own data must pass."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected
from tqdm import tqdm

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, Summary
from graphgps_kmip.data.record import DatasetRecord
from graphgps_kmip.files import replace_file

ONE_COLUMN = ("classification", "link_ranking", "link_prediction")
CLASSES = ("classification", "subtoken_prediction")
UNITS = {"graph": "graph", "link": "pair of nodes"}
LONG = 20_000  # graphs from which on looking at each of them is worth a progress bar
LOOKED_AT = 10  # graphs whose edges decide whether a data set counts as directed, as in GraphGPS


@dataclass(frozen=True)
class DatasetInfo:
    """What models, tasks and reports need to know of a data set.

    Args:
        name: its title, for messages.
        level: "graph", "inductive_node", "node" or "link".
        sizes: samples that train, validate and test: graphs, or nodes at level "node".
        graphs, dim_in, ...: as in `Summary`.
    """

    name: str
    level: str
    sizes: tuple[int, int, int]
    graphs: int
    dim_in: int
    dim_edge: int
    dim_out: int
    mean_nodes: float
    max_nodes: int
    mean_edges: float
    directed: bool

    @classmethod
    def of(cls, dataset: GraphDataset, record: DatasetRecord) -> DatasetInfo:
        """Look at every graph once, or at what was kept of that look (`GraphDataset.summary`).

        Raises:
            ValueError: no graphs, an empty split, missing or misshapen x, y, edge_index or edge_attr, edges to nodes
                that do not exist, class labels that are NaN, negative or fractional.
        """
        if len(dataset) == 0:
            raise ValueError(f"{record.title}: the data set has no graphs: check what its load(root) returns")
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
    """Look at every graph once.

    Raises:
        ValueError: as `DatasetInfo.of`.
    """
    widths, out, nodes, edges = set(), set(), [], []
    many = len(dataset) > LONG
    for number, graph in enumerate(tqdm(dataset.graphs, f"{record.title}: looking at every graph", disable=not many)):
        where = f"{record.title}, graph {number}"
        _check_edges(graph, where)
        widths.add((_columns(graph.x, where), _columns(graph.edge_attr, where)))
        out.add(_dim_out(_labels(graph, record, where), record, where))
        nodes.append(graph.num_nodes)
        edges.append(graph.num_edges)
    same_targets = len(out) == 1 or record.task_type == "classification"
    if len(widths) > 1 or not same_targets:
        raise ValueError(f"{record.title}: graphs differ in the columns of x, edge_attr or y: give all the same")
    dim_in, dim_edge = widths.pop()
    first = [dataset.graphs[i] for i in range(min(LOOKED_AT, len(dataset)))]
    return Summary(
        graphs=len(dataset),
        dim_in=dim_in,
        dim_edge=dim_edge,
        dim_out=max(out),
        mean_nodes=sum(nodes) / len(nodes),
        max_nodes=max(nodes),
        mean_edges=sum(edges) / len(edges),
        directed=not all(is_undirected(graph.edge_index, num_nodes=graph.num_nodes) for graph in first),
    )


def kept_summary(dataset: GraphDataset, record: DatasetRecord, folder: Path) -> Summary:
    """Return `summarize` of a data set, computed once for what lies in the folder of its processed files."""
    basis = hashlib.sha256(repr((record.level, record.task_type, record.features)).encode()).hexdigest()[:12]
    path = folder / f"summary-{record.key.replace('/', '-')}-{basis}.json"
    try:
        return Summary(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):  # none yet, or not a whole one: it can always be made again
        summary = summarize(dataset, record)
    replace_file(path, (json.dumps(asdict(summary)) + "\n").encode())
    return summary


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
    """Return the labels as (rows, columns), one row for each graph, labelled node or labelled pair of nodes."""
    key = "edge_label" if record.level == "link" else "y"
    if graph.get(key) is None:
        raise ValueError(f"{where}: {key} is missing: set the label of the graph, or of each node or pair of nodes")
    y = torch.atleast_1d(torch.as_tensor(graph[key]))
    y = y[:, None] if y.dim() == 1 else y
    rows = ROWS.get(record.level, _nodes)(graph, where)
    if y.size(0) != rows or (record.task_type in ONE_COLUMN and y.size(1) != 1):
        wanted = f"({rows},)" if record.task_type in ONE_COLUMN else f"({rows}, number of targets)"
        raise ValueError(f"{where}: {key} must have shape {wanted}, got {tuple(torch.as_tensor(graph[key]).shape)}")
    if record.level == "node":  # nodes outside all splits may be without a label
        masks = [graph[f"{split}_mask"] for split in SPLITS]
        y = y[torch.stack([mask.reshape(len(mask), -1).any(1) for mask in masks]).any(0)]
    return y


def _pairs(graph: Data, where: str) -> int:
    """Return the number of labelled pairs of nodes."""
    pairs = graph.get("edge_label_index")
    if pairs is None or pairs.dim() != 2 or pairs.size(0) != 2 or pairs.dtype != torch.int64:
        raise ValueError(f"{where}: edge_label_index must be int64 (2, L), the pairs of nodes that have a label")
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= graph.num_nodes):
        raise ValueError(f"{where}: edge_label_index names nodes outside 0..{graph.num_nodes - 1}")
    return pairs.size(1)


def _nodes(graph: Data, _where: str) -> int:
    return graph.num_nodes


ROWS: dict[str, Callable[[Data, str], int]] = {"graph": lambda _graph, _where: 1, "link": _pairs}


def _dim_out(labels: Tensor, record: DatasetRecord, where: str) -> int:
    """Return the number of outputs that the labels of one graph ask for."""
    if record.task_type not in CLASSES:
        return labels.size(1)
    if not bool((labels >= 0).all()) or not torch.equal(labels.long().to(labels.dtype), labels):  # NaN fails >= 0
        raise ValueError(f"{where}: class labels must be whole numbers from 0, got NaN or others")
    classes = int(labels.max()) + 1 if labels.numel() else 1
    known = record.features.classes if record.features else classes
    if classes > known:
        raise ValueError(f"{where}: label {classes - 1} found, but its record says {known} classes")
    return known
