"""What is known of a data set before it is loaded, and how to load it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_geometric.data import Data

from graphgps_kmip.data.dataset import GraphDataset, split_at_random

LEVELS = ("graph", "inductive_node", "node")
TASK_TYPES = ("classification", "classification_multilabel", "regression")
SPLIT_MODES = ("standard", "random")


@dataclass(frozen=True)
class Features:
    """What a data set's inputs and labels look like.

    Args:
        node: number of float features of a node, or the vocabulary sizes of its categorical columns.
        edge: the same for edges; 0: none.
        classes: number of classes, label columns or targets.
    """

    node: int | tuple[int, ...]
    edge: int | tuple[int, ...] = 0
    classes: int = 1


@dataclass(frozen=True)
class Statistics:
    """Published size of a data set: number of graphs, mean number of nodes and of directed edges of a graph."""

    graphs: int
    mean_nodes: float
    mean_edges: float


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: whom to cite, under which licence it may be used."""

    citation: str
    licence: str


@dataclass(frozen=True)
class DatasetRecord:
    """One data set, found in YAML by ``dataset.format`` and ``dataset.name``.

    Args:
        format: value of ``dataset.format``, a family of data sets.
        load: ``load(root)`` reads from the folder ``dataset.dir``: a list of `Data`, one `Data`, or, with splits of its
            own, a `GraphDataset`.
        task_type: a row of `TASK_TYPES`.
        name: value of ``dataset.name``; empty where the format has one data set only.
        level: what has a label: "graph", "inductive_node" (every node of graphs that are divided) or "node" (the nodes
            of one graph, divided by masks).
        fractions: shares of training, validation and test where the data has no split of its own.
        summary: one line for lists.
        features: what inputs and labels look like, where that is known before loading.
        statistics: published size.
        source: citation and licence.

    Raises:
        ValueError: level or task_type is not a known one.
    """

    format: str
    load: Callable[[str], GraphDataset | Sequence[Data] | Data]
    task_type: str
    name: str = ""
    level: str = "graph"
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)
    summary: str = ""
    features: Features | None = None
    statistics: Statistics | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"{self.title}: level must be one of {', '.join(LEVELS)}, got {self.level!r}")
        if self.task_type not in TASK_TYPES:
            raise ValueError(f"{self.title}: task_type must be one of {', '.join(TASK_TYPES)}, got {self.task_type!r}")

    @property
    def title(self) -> str:
        """Format and name in one word, for messages."""
        return f"{self.format}/{self.name}" if self.name else self.format


def open_dataset(
    record: DatasetRecord,
    root: str,
    split_mode: str = "standard",
    fractions: Sequence[float] | None = None,
    seed: int = 0,
) -> GraphDataset:
    """Load a data set and see to its split.

    Args:
        record: which data set.
        root: folder of the data (``dataset.dir``).
        split_mode: "standard": the split that the data set has, or else a random one that is the same in every run;
            "random": a random one by ``seed``.
        fractions: shares of training, validation and test for "random"; None: those of the record.
        seed: of a "random" split.

    Raises:
        ValueError: unknown split mode, no graphs, or too few to divide.
    """
    if split_mode not in SPLIT_MODES:
        raise ValueError(f"dataset.split_mode must be one of {', '.join(SPLIT_MODES)}, got {split_mode!r}")
    loaded = record.load(root)
    graphs = [loaded] if isinstance(loaded, Data) else loaded
    dataset = graphs if isinstance(graphs, GraphDataset) else GraphDataset(graphs)
    if len(dataset) == 0:
        raise ValueError(f"{record.title}: the data set has no graphs: check what its load(root) returns")
    if split_mode == "random":
        return split_at_random(dataset, record.level, fractions or record.fractions, seed)
    divided = dataset.splits is not None or (record.level == "node" and "train_mask" in dataset.graphs[0])
    # Seed 0 whatever the run's seed: runs that differ in their seed must be tested on the same samples.
    return dataset if divided else split_at_random(dataset, record.level, record.fractions, seed=0)
