"""`DatasetRecord`: task, features, statistics, source and raw files of a data set; registry and dataset card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.data import Data

from graphgps_kmip import registry
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset import SPLITS, GraphDataset
from graphgps_kmip.errors import InputError

if TYPE_CHECKING:
    from graphgps_kmip.data.dataset_info import DatasetInfo

LEVELS = {
    "graph": "whole graphs",
    "inductive_node": "the nodes of each graph",
    "node": "the nodes of one graph",
    "link": "pairs of nodes",
}
TASK_TYPES = ("classification", "classification_multilabel", "regression", "subtoken_prediction")
TASK_TYPES += ("link_ranking", "link_prediction")


@dataclass(frozen=True)
class Features:
    """What a data set's inputs and labels look like.

    Args:
        node: number of float features of a node, or the vocabulary sizes of its categorical columns.
        edge: the same for edges; 0: none.
        classes: number of classes, label columns or targets.
        positions: coordinates of a node in ``pos``; 0: none.
    """

    node: int | tuple[int, ...]
    edge: int | tuple[int, ...] = 0
    classes: int = 1
    positions: int = 0


@dataclass(frozen=True)
class Statistics:
    """Published size of a data set, as its publication counts.

    Args:
        graphs: number of graphs.
        mean_nodes: mean number of nodes of a graph.
        mean_edges: mean number of edges of a graph; None where none is published.
        edges_once: an undirected edge was counted once; we hold, and count, both of its directions.
        directed: whether edges have a direction; None where that is not published.
        sizes: samples that train, validate and test; None where there is no official split.
    """

    graphs: int
    mean_nodes: float
    mean_edges: float | None = None
    edges_once: bool = False
    directed: bool | None = None
    sizes: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: whom to cite, under which licence it may be used, its official page."""

    citation: str
    licence: str
    page: str = ""


@dataclass(frozen=True)
class RawFiles:
    """The files that a data set is made from, as its publisher gives them.

    Args:
        home: folder below ``dataset.dir`` that is given to the loading class as its root.
        files: what must be there, files or folders, relative to ``home/base``.
        base: folder below ``home`` that belongs to this data set alone; "" if ``home`` does.
        archives: downloads that may be in ``home/base`` instead. (default: the names of ``urls`` that are no files)
        processed: folder below ``home/base`` that the loading class writes.
        inside: folder of the archives that holds the files; "" where any does.
        unread: those of ``files`` that the loading class asks for and never reads: they are not checked.
        urls: addresses of ``files`` and ``archives``.
    """

    home: str
    files: tuple[str, ...]
    base: str = ""
    archives: tuple[str, ...] = ()
    processed: str = "processed"
    inside: str = ""
    unread: tuple[str, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.archives and set(self.urls) - set(self.files):
            object.__setattr__(self, "archives", tuple(name for name in self.urls if name not in self.files))

    @property
    def folder(self) -> str:
        """The folder of this data set below ``dataset.dir``."""
        return f"{self.home}/{self.base}" if self.base else self.home


@dataclass(frozen=True)
class DatasetRecord:
    """One data set, found in YAML by ``dataset.format`` and ``dataset.name``.

    Args:
        format: value of ``dataset.format``, a family of data sets.
        load: ``load(root)`` returns graphs, one `Data`, or, with its splits, a `GraphDataset`; root is ``dataset.dir``,
            with ``raw`` files their ``home``, made ready by `prepared`.
        task_type: one of `TASK_TYPES`.
        name: value of ``dataset.name``; empty where the format has one data set only.
        level: what has a label, a key of `LEVELS`; the nodes of one graph ("node") are divided by masks.
        fractions: shares of training, validation and test where the data has no split.
        title: what people call it; "" for format and name.
        metric: value of ``metric_best`` that its publications report; "" if there is none.
        loss: value of ``model.loss_fun`` that they train with; "" if there is none.
        split: its split, in words.
        summary: one line for lists.
        features: what inputs and labels look like, where that is known before loading.
        statistics: published size.
        source: citation, licence and official page.
        raw: the files it is made from; None where it needs none.
        unknown_targets: some targets are not published and NaN; else NaN in a target is refused.
        divide: ``divide(dataset, fractions, seed)`` returns what `load` returns with a split of its pairs of nodes;
            None: graphs or nodes are divided.
        sample: builds the offline stand-in where the generic generator cannot; ``sample(record, seed)``.
    """

    format: str
    load: Callable[[str], GraphDataset | Sequence[Data] | Data]
    task_type: str
    name: str = ""
    level: str = "graph"
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    title: str = ""
    metric: str = ""
    loss: str = ""
    split: str = ""
    summary: str = ""
    features: Features | None = None
    statistics: Statistics | None = None
    source: Source | None = None
    raw: RawFiles | None = None
    unknown_targets: bool = False
    divide: Callable[[GraphDataset, Sequence[float], int], GraphDataset] | None = None
    sample: Callable[[DatasetRecord, int], GraphDataset] | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InputError(f"{self.key}: level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        if self.task_type not in TASK_TYPES:
            raise InputError(f"{self.key}: task_type must be one of {', '.join(TASK_TYPES)}, got {self.task_type!r}")
        if not self.title:
            object.__setattr__(self, "title", self.key)

    @property
    def has_sample(self) -> bool:
        """Whether a stand-in of the same schema can be made without files: dims and classes are then known."""
        return self.sample is not None or bool(self.features and self.features.node)

    @property
    def key(self) -> str:
        """Format and name in one word, as YAML files give them."""
        return f"{self.format}/{self.name}" if self.name else self.format


NAMELESS = ("", "none")  # GraphGym's ways to leave dataset.name out


def datasets() -> dict[tuple[str, str], DatasetRecord]:
    """Return the registered data sets by format and name."""
    records = (spec.component for spec in registry.entries("dataset").values())
    return {(record.format, record.name): record for record in records}


def register_dataset(record: DatasetRecord) -> DatasetRecord:
    """Register a data set; registering another one of this format and name is a `ConfigError`."""
    return registry.register("dataset", record.key, record, summary=f"{record.title}: {record.summary}")


def find(format: str, name: str = "") -> DatasetRecord:  # noqa: A002 (the config key's name)
    """Return the record of a data set by ``dataset.format`` and ``dataset.name``, "" or "none" if it has no name."""
    records = datasets()
    names = [key[1] for key in records if key[0] == format]
    if not names:
        raise InputError(f"dataset.format: unknown {format!r}.{suggest(format, {key[0] for key in records})}")
    name = "" if name in NAMELESS and "" in names else name
    if name not in names:
        raise InputError(
            f"dataset.name: {format} has no {name!r}.{suggest(name, [other or 'none' for other in names])}"
        )
    return records[format, name]


def find_title(name: str) -> DatasetRecord:
    """Return the record of a data set by its title, or by format/name, in capitals or not; else suggest near misses."""
    records = list(datasets().values())
    by_name = {record.key.lower(): record for record in records}
    by_name |= {record.title.lower(): record for record in reversed(records)}
    if name.lower() not in by_name:
        raise InputError(f"--data: unknown {name!r}.{suggest(name, [record.title for record in records])}")
    return by_name[name.lower()]


# Means are published with one or two decimals: half a unit of the last of them, and a little for rounding twice.
TOLERANCE = 0.051


def mismatches(record: DatasetRecord, info: DatasetInfo) -> list[str]:
    """Return one line for each published figure that the loaded data does not agree with."""
    return [
        f"{record.title}: {what} should be {published}, as published, but {loaded} were found: another release, or an "
        "incomplete one?"
        for what, published, loaded in _compared(record, info)
        if not _agree(published, loaded)
    ]


def card_text(record: DatasetRecord, root: str | Path, info: DatasetInfo | None) -> str:
    """Return the dataset card as text; ``info`` is that of the loaded data, None if it is not on disk."""
    lines = [f"{name:<12} {text}" for name, text in _facts(record, root) if text]
    rows = list(_compared(record, info))
    if rows:
        header = ("", "published", "found" if info else "found (not loaded)")
        lines += ["", *(f"{what:<24} {first:>22}  {second:>22}".rstrip() for what, first, second in (header, *rows))]
    if info:
        lines += ["", *(f"warning: {line}" for line in mismatches(record, info))]
    return "\n".join(lines).rstrip()


def published_rows(record: DatasetRecord, info: DatasetInfo) -> list[tuple[str, str]]:
    """Return rows (what, value) on a data set that is not on disk: published sizes, dims of a stand-in ``info``."""
    published = record.statistics
    unit = "nodes" if record.level == "node" else "graphs"
    sizes = nodes = edges = ""
    if published:
        sizes = " / ".join(f"{size:,}" for size in published.sizes or ())
        nodes = f"{_text(published.mean_nodes)} on average"
        once = " (each once)" if published.edges_once else ""
        edges = f"{_text(published.mean_edges)} on average{once}" if published.mean_edges is not None else ""
    shown = {f"{unit} (train / val / test)": sizes, "nodes of a graph": nodes, "edges of a graph": edges}
    as_published = {what: f"{value}, as published" if value else "not known" for what, value in shown.items()}
    return list((dict(info.describe()) | as_published).items())


def _facts(record: DatasetRecord, root: str | Path) -> Iterator[tuple[str, str]]:
    source, raw = record.source, record.raw
    yield "data set", f"{record.title}: {record.summary}" if record.summary else record.title
    yield "in YAML", f"dataset.format {record.format}, dataset.name {record.name or 'none'}"
    yield "task", f"{record.task_type} of {LEVELS[record.level]}"
    yield "metric", record.metric and f"metric_best {record.metric}"
    yield "loss", record.loss and f"model.loss_fun {record.loss}"
    shares = "/".join(f"{100 * share:g}" for share in record.fractions)
    yield "split", record.split or f"none of its own: {shares} at random, the same in every run"
    yield "features", _features(record.features) if record.features else ""
    yield "citation", source.citation if source else ""
    yield "licence", source.licence if source else ""
    yield "page", source.page if source else ""
    if raw:
        folder = Path(root).expanduser().absolute() / raw.folder
        yield "files", f"{', '.join(raw.files[:8])}{', ...' if len(raw.files) > 8 else ''} in {folder}"
        yield "or", " and ".join(raw.archives) + " there, as downloaded" if raw.archives else ""


def _features(features: Features) -> str:
    def width(what: int | tuple[int, ...], of: str) -> str:
        if isinstance(what, tuple):
            return f"{len(what)} categories of {of} ({', '.join(map(str, what))} values)"
        return f"{what or 'no'} numbers of {of}"

    position = f", {features.positions} coordinates" if features.positions else ""
    return f"{width(features.node, 'a node')}, {width(features.edge, 'an edge')}{position}"


def _compared(record: DatasetRecord, info: DatasetInfo | None) -> Iterator[tuple[str, str, str]]:
    published, features = record.statistics, record.features
    if published:
        mean = "" if published.graphs == 1 else "mean "
        yield "graphs", _text(published.graphs), _text(info and info.graphs)
        yield f"{mean}nodes", _text(published.mean_nodes), _text(info and info.mean_nodes)
        if published.mean_edges is not None:
            twice = 2 if published.edges_once and not (info and info.directed) else 1
            once = " (each once)" if published.edges_once else ""
            yield f"{mean}edges{once}", _text(published.mean_edges), _text(info and info.mean_edges / twice)
        for number, size in enumerate(published.sizes or ()):
            yield f"{SPLITS[number]} samples", _text(size), _text(info and info.sizes[number])
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


def _agree(published: str, loaded: str) -> bool:
    if not (published and loaded) or published == loaded:
        return True
    first, second = (float(text.replace(",", "")) for text in (published, loaded))
    return "." in published + loaded and abs(first - second) <= TOLERANCE
