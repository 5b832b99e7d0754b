"""Transductive node classification: records of one graph with labelled nodes, and changes to it after loading.

Reverse edges and self loops as Exphormer's code adds them, and features of each node that sum to 1.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.data import Data
from torch_geometric.utils import coalesce, remove_self_loops

from graphgps_kmip.data.dataset_record import DatasetRecord


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


def with_reverse_edges(graph: Data) -> Data:
    """Return a copy of a graph in which each edge is given in both directions, once.

    Args:
        graph: is not changed.

    Shapes:
        edge_index (2, E) -> (2, E') sorted; edge_attr alike, the mean of both directions.
    """
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    edge_attr = None if graph.edge_attr is None else torch.cat([graph.edge_attr, graph.edge_attr])
    if edge_attr is None:
        both = coalesce(both, num_nodes=graph.num_nodes)
    else:
        kind = edge_attr.dtype
        both, edge_attr = coalesce(both, edge_attr.double(), graph.num_nodes, reduce="mean")
        edge_attr = edge_attr.to(kind)
    return _with(graph, both, edge_attr)


def with_self_loops(graph: Data) -> Data:
    """Return a copy of a graph in which each node has one edge to itself, with zeros as edge features.

    Exphormer's code leaves out nodes without edges, and adds a second loop to a node that has one.
    """
    loops = torch.arange(graph.num_nodes).expand(2, -1)
    kept, edge_attr = remove_self_loops(graph.edge_index, graph.edge_attr)
    if edge_attr is not None:
        edge_attr = torch.cat([edge_attr, edge_attr.new_zeros(graph.num_nodes, *edge_attr.shape[1:])])
    return _with(graph, torch.cat([kept, loops], dim=1), edge_attr)


def _with(graph: Data, edge_index: Tensor, edge_attr: Tensor | None) -> Data:
    graph = copy.copy(graph)
    graph.edge_index, graph.edge_attr = edge_index, edge_attr
    return graph


def with_normalized_features(graph: Data) -> Data:
    """Return a copy of a graph in which the absolute features of each node sum to 1; those of zeros stay so.

    Kipf and Welling 2017, section 5.2, do so with bags of words, which have no negative features.

    Shapes:
        x (N, C) -> (N, C), in floating point.
    """
    graph = copy.copy(graph)
    x = graph.x if graph.x.is_floating_point() else graph.x.float()
    graph.x = normalize(x, p=1, dim=1)
    return graph
