"""Facts derived from a loaded data set (dims, classes, sizes), checks of a user's own data, and the dataset card."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch_geometric.utils import is_undirected
from tqdm import tqdm

from graphgps_kmip.common.torch_files import UnreadableFile, load_plain, save_plain
from graphgps_kmip.data.dataset import GraphDataset, Summary
from graphgps_kmip.data.dataset_record import DatasetRecord, Features
from graphgps_kmip.data.file_errors import graph_at
from graphgps_kmip.data.graph_checks import (
    CLASSES,
    check_graph,
    check_targets,
    columns,
    dim_out_of,
    labels_of,
    split_sizes,
)
from graphgps_kmip.errors import DataError

log = logging.getLogger(__name__)
UNITS = {"graph": "graph", "link": "pair of nodes"}
LOOK_VERSION = 2  # raised when a look at every graph checks more: what was kept of earlier looks is then not used
LONG = 20_000  # graphs from which on looking at each of them is worth a progress bar
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
        """Look at every graph once, or at what was kept of that look (`GraphDataset.summary`).

        Raises:
            ValueError: no graphs, an empty split, missing or misshapen x, y, edge_index or edge_attr, edges to nodes
                that do not exist, NaN or infinite features, labels that the task cannot use.
        """
        if len(dataset) == 0:
            raise DataError(f"{record.title}: the data set has no graphs: check what its load(root) returns")
        sizes = split_sizes(dataset, record)
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
        DataError: a graph cannot be read.
    """
    nodes, edges, labels = [], [], torch.empty(0)
    widths: dict[str, tuple[int, str]] = {}  # columns of attributes, and the first graph that has them
    outputs, largest = 0, ""
    many = len(dataset) > LONG
    for number in tqdm(range(len(dataset)), f"{record.title}: looking at every graph", disable=not many):
        where = f"{record.title}, {dataset.place(number)}"
        graph = graph_at(dataset.graphs, number, where)
        check_graph(graph, where)
        y = labels_of(graph, record, where)
        width = {key: columns(graph.get(key), where) for key in ("x", "edge_attr")}
        dim_out = dim_out_of(y, record, where)
        if record.task_type not in CLASSES:
            check_targets(y, record, where)
        if record.task_type != "classification":
            width["y"] = dim_out
        elif record.features is None:
            labels = torch.cat([labels, y.flatten().unique()]).unique()
        for key, number_of in width.items():
            known, first = widths.setdefault(key, (number_of, where))
            if number_of != known:
                raise DataError(
                    f"{where}: graphs differ in the columns of {key}: {number_of or 'none'} here, {known or 'none'} in "
                    f"{first}: give all the same"
                )
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


def kept_summary(dataset: GraphDataset, record: DatasetRecord, folder: Path) -> Summary:
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


Row = tuple[str, str, str]  # what, published, found
# Means are published with one or two decimals: half a unit of the last of them, and a little for rounding twice.
TOLERANCE = 0.051
LEVELS = {
    "graph": "whole graphs",
    "inductive_node": "the nodes of each graph",
    "node": "the nodes of one graph",
    "link": "pairs of nodes",
}


def mismatches(record: DatasetRecord, info: DatasetInfo) -> list[str]:
    """Return one line for each published figure that the loaded data does not agree with."""
    return [
        f"{record.title}: {what} should be {published}, as published, but {found} were found: another release, or an "
        "incomplete one?"
        for what, published, found in _compared(record, info)
        if not _agree(published, found)
    ]


def card_text(record: DatasetRecord, root: str | Path, info: DatasetInfo | None) -> str:
    """Return the dataset card as text.

    Args:
        record: of the data set.
        root: folder of all data sets (``dataset.dir``).
        info: what was found in the loaded data; None if it is not on disk.
    """
    lines = [f"{name:<12} {text}" for name, text in _facts(record, root) if text]
    rows = list(_compared(record, info))
    if rows:
        header = ("", "published", "found" if info else "found (not loaded)")
        lines += ["", *(f"{what:<24} {one:>22}  {other:>22}".rstrip() for what, one, other in (header, *rows))]
    if info:
        lines += ["", *(f"warning: {line}" for line in mismatches(record, info))]
    return "\n".join(lines).rstrip()


def published_rows(record: DatasetRecord, info: DatasetInfo) -> list[tuple[str, str]]:
    """Return rows (what, value) on a data set that is not on disk: `DatasetInfo.describe` with published sizes.

    Args:
        record: of the data set.
        info: of its stand-in, whose dims are those of the data set; its sizes are not shown.
    """
    known = record.statistics
    unit = "nodes" if record.level == "node" else "graphs"
    sizes = known and known.sizes and " / ".join(f"{size:,}" for size in known.sizes)
    mean_edges = _text(known.mean_edges) if known and known.mean_edges is not None else ""
    once = " (each once)" if known and known.edges_once else ""
    shown = {
        f"{unit} (train / val / test)": sizes or "",
        "nodes of a graph": f"{_text(known.mean_nodes)} on average" if known else "",
        "edges of a graph": mean_edges and f"{mean_edges} on average{once}",
    }
    rows = dict(info.describe()) | {
        what: f"{value}, as published" if value else "not known" for what, value in shown.items()
    }
    return list(rows.items())


def _facts(record: DatasetRecord, root: str | Path) -> Iterator[tuple[str, str]]:
    source, raw = record.source, record.raw
    yield "data set", f"{record.title}: {record.summary}" if record.summary else record.title
    yield "in YAML", f"dataset.format {record.format}, dataset.name {record.name or 'none'}"
    yield "task", f"{record.task_type} of {LEVELS[record.level]}"
    yield "metric", record.metric and f"metric_best {record.metric}"
    yield "loss", record.loss and f"model.loss_fun {record.loss}"
    yield "split", record.split or f"none of its own: {_shares(record)} at random, the same in every run"
    yield "features", _features(record.features) if record.features else ""
    yield "citation", source.citation if source else ""
    yield "licence", source.licence if source else ""
    yield "page", source.page if source else ""
    if raw:
        folder = Path(root).expanduser().absolute() / raw.folder
        yield "files", f"{', '.join(raw.files[:8])}{', ...' if len(raw.files) > 8 else ''} in {folder}"
        yield "or", " and ".join(raw.archives) + " there, as downloaded" if raw.archives else ""


def _shares(record: DatasetRecord) -> str:
    return "/".join(f"{100 * share:g}" for share in record.fractions)


def _features(features: Features) -> str:
    def width(what: int | tuple[int, ...], of: str) -> str:
        if isinstance(what, tuple):
            return f"{len(what)} categories of {of} ({', '.join(map(str, what))} values)"
        return f"{what or 'no'} numbers of {of}"

    position = f", {features.positions} coordinates" if features.positions else ""
    return f"{width(features.node, 'a node')}, {width(features.edge, 'an edge')}{position}"


def _compared(record: DatasetRecord, info: DatasetInfo | None) -> Iterator[Row]:
    published, features = record.statistics, record.features
    if published:
        once = published.edges_once and not (info and info.directed)
        one = published.graphs == 1
        sizes = published.sizes or (None, None, None)
        yield "graphs", _text(published.graphs), _text(info and info.graphs)
        yield "nodes" if one else "mean nodes", _text(published.mean_nodes), _text(info and info.mean_nodes)
        if published.mean_edges is not None:
            found = info and (info.mean_edges / 2 if once else info.mean_edges)
            label = ("edges" if one else "mean edges") + (" (each once)" if published.edges_once else "")
            yield label, _text(published.mean_edges), _text(found)
        for split, size, found in zip(("train", "val", "test"), sizes, info.sizes if info else sizes, strict=True):
            if size is not None:
                yield f"{split} samples", _text(size), _text(info and found)
    if features and not isinstance(features.node, tuple):
        yield "node features", _text(features.node), _text(info and info.dim_in)
    if features and not isinstance(features.edge, tuple):
        yield "edge features", _text(features.edge), _text(info and info.dim_edge)
    if features:
        yield "classes or targets", _text(features.classes), _text(info and info.dim_out)


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) and value != int(value) else f"{int(value):,}"


def _agree(published: str, found: str) -> bool:
    if not (published and found) or published == found:
        return True
    one, other = (float(text.replace(",", "")) for text in (published, found))
    return "." in published + found and abs(one - other) <= TOLERANCE
