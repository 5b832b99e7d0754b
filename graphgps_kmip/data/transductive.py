"""What the records of one graph with labelled nodes share: how torch_geometric loads it, and its words."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import DatasetRecord


def load_graph(home: str, kind: str, **options: Any) -> Data:
    """Return the one graph of a data set of torch_geometric.

    Args:
        home: root folder of the class.
        kind: name of the class.
        options: its further arguments.
    """
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
