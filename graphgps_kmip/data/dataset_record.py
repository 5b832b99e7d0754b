"""`DatasetRecord`: task, features, statistics, source and raw files of a data set; registration and look-up by name.

``dataset.format`` and ``dataset.name`` of a YAML file name a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch_geometric.data import Data

from graphgps_kmip import registry
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.errors import InputError

LEVELS = ("graph", "inductive_node", "node", "link")
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
        base: folder below ``home`` that belongs to this data set alone; "" if ``home`` does.
        files: what must be there, files or folders, relative to ``home/base``.
        archives: downloads from the official page that may be in ``home/base`` instead, as they came; what is missing
            of ``files`` is unpacked from them.
        processed: folder below ``home/base`` that the loading class writes.
        inside: folder of the archives that holds the files; "" where any does.
        unread: those of ``files`` that the loading class asks for and never reads: they are not checked.
        urls: addresses of ``files`` and ``archives`` by these names. Without any, the loading class downloads, and
            reads what it gets before that is checked.
    """

    home: str
    files: tuple[str, ...]
    base: str = ""
    archives: tuple[str, ...] = ()
    processed: str = "processed"
    inside: str = ""
    unread: tuple[str, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def folder(self) -> str:
        """The folder of this data set below ``dataset.dir``."""
        return f"{self.home}/{self.base}" if self.base else self.home


@dataclass(frozen=True)
class DatasetRecord:
    """One data set, found in YAML by ``dataset.format`` and ``dataset.name``.

    Args:
        format: value of ``dataset.format``, a family of data sets.
        load: ``load(root)`` reads from the folder ``dataset.dir``: a list of `Data`, one `Data`, or, with splits of its
            own, a `GraphDataset`. With ``raw`` files, root is their ``home``, made ready by `prepared`.
        task_type: a row of `TASK_TYPES`.
        name: value of ``dataset.name``; empty where the format has one data set only.
        level: what has a label: "graph", "inductive_node" (every node of graphs that are divided) or "node" (the nodes
            of one graph, divided by masks).
        fractions: shares of training, validation and test where the data has no split of its own.
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
        sample: builds the offline stand-in where the generic generator cannot; ``sample(record, seed)``.

    Raises:
        ValueError: level or task_type is not a known one.
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


def load_graph(home: str, kind: str, **options: Any) -> Data:
    """Return the one graph of a data set of torch_geometric: class `kind`, with root folder `home`."""
    from torch_geometric import datasets  # a second of imports, which runs on other data need not spend

    return getattr(datasets, kind)(home, **options)[0]


def node_record(format: str, kind: str = "", options: dict[str, Any] | None = None, **facts: Any) -> DatasetRecord:  # noqa: A002
    """Return the record of one graph whose nodes are divided by masks: by default a classification of single labels.

    Args:
        format: value of ``dataset.format``.
        kind: name of the class of torch_geometric that loads it; "" if ``facts`` holds another ``load``.
        options: arguments of that class beside its root folder.
        facts: further fields of the record.
    """
    usual = {"task_type": "classification", "metric": "accuracy", "loss": "cross_entropy"}
    load = partial(load_graph, kind=kind, **(options or {}))
    return DatasetRecord(**{"format": format, "level": "node", "load": load, **usual, **facts})


NAMELESS = ("", "none")  # GraphGym's ways to leave dataset.name out


def datasets() -> dict[tuple[str, str], DatasetRecord]:
    """Return the registered data sets by format and name."""
    records = (spec.component for spec in registry.entries("dataset").values())
    return {(record.format, record.name): record for record in records}


def register(record: DatasetRecord) -> DatasetRecord:
    """Register a data set; registering the same record again is harmless.

    Raises:
        ConfigError: another data set has this format and name.
    """
    return registry.register("dataset", record.key, record, summary=f"{record.title}: {record.summary}")


def find(format: str, name: str = "") -> DatasetRecord:  # noqa: A002 (the config key's name)
    """Return the record of a data set.

    Args:
        format: value of ``dataset.format``.
        name: value of ``dataset.name``; "" or "none" for a format with one nameless data set.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    known = datasets()
    records = {record.name: record for record in known.values() if record.format == format}
    if not records:
        raise InputError(f"dataset.format: unknown {format!r}.{suggest(format, {key[0] for key in known})}")
    name = "" if name in NAMELESS and "" in records else name
    if name not in records:
        raise InputError(f"dataset.name: {format} has no {name!r}.{suggest(name, [one or 'none' for one in records])}")
    return records[name]


def find_title(name: str) -> DatasetRecord:
    """Return the record of a data set by what people call it, or by format/name; capitals do not matter.

    Raises:
        ValueError: no such data set; near misses are suggested.
    """
    records = list(datasets().values())
    known = {record.key.lower(): record for record in records}
    known |= {record.title.lower(): record for record in reversed(records)}
    if name.lower() not in known:
        raise InputError(f"--data: unknown {name!r}.{suggest(name, [one.title for one in records])}")
    return known[name.lower()]
