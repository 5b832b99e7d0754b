"""MalNet-Tiny: 5,000 function call graphs of Android apps. They carry no features: the name says which are made."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.utils import degree

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.errors import InputError

MAX_DEGREE = 100  # those above share the last column; a function calls two others on average
FILES = ("raw/malnet-graphs-tiny", "raw/split_info_tiny/type")
URLS = {
    "malnet-graphs-tiny.tar.gz": "http://malnet.cc.gatech.edu/graph-data/malnet-graphs-tiny.tar.gz",
    "split_info_tiny.zip": "http://malnet.cc.gatech.edu/split-info/split_info_tiny.zip",
}


def load(home: str, kind: str) -> GraphDataset:
    """Return the graphs with the official split; their ``x`` is made by `featurize` at each access."""
    from torch_geometric.datasets import MalNetTiny
    from torch_geometric.io import fs

    graphs = MalNetTiny(home, transform=partial(featurize, kind=kind))
    first, val, test, end = fs.torch_load(graphs.processed_paths[1])
    return GraphDataset(graphs, (range(first, val), range(val, test), range(test, end)))


def featurize(data: Data, kind: str) -> Data:
    """Return a copy of the graph whose ``x`` is made from its edges.

    Args:
        data: a graph; an ``x`` of its own is replaced.
        kind: "LocalDegreeProfile": a node's out-degree, and minimum, maximum, mean and standard deviation of those of
            its successors; "OneHotDegree": the out-degree, at most `MAX_DEGREE`; "Constant" or "": ones.

    Shapes: x (N, 5), (N, MAX_DEGREE + 1) or (N, 1), float.
    """
    if kind not in KINDS:
        raise InputError(f"dataset.name: PyG-MalNetTiny has no {kind!r}.{suggest(kind, KINDS)}")
    graph = copy.copy(data)
    graph.x = KINDS[kind](Data(edge_index=data.edge_index, num_nodes=data.num_nodes))
    return graph


@cache
def _local_degree_profile() -> Callable[[Data], Data]:
    from torch_geometric.transforms import LocalDegreeProfile  # takes a while to import, and to build

    return LocalDegreeProfile()


def _one_hot_degree(data: Data) -> Tensor:
    out_degree = degree(data.edge_index[0], data.num_nodes, dtype=torch.long)
    return one_hot(out_degree.clamp(max=MAX_DEGREE), MAX_DEGREE + 1).float()


KINDS: dict[str, Callable[[Data], Tensor]] = {
    "LocalDegreeProfile": lambda data: _local_degree_profile()(data).x,
    "OneHotDegree": _one_hot_degree,
    "": lambda data: torch.ones(data.num_nodes, 1),
    "Constant": lambda data: torch.ones(data.num_nodes, 1),
}


def _record(name: str, title: str, width: int, features: str, derived: bool = True) -> DatasetRecord:
    return DatasetRecord(
        format="PyG-MalNetTiny",
        name=name,
        title=title,
        load=partial(load, kind=name),
        task_type="classification",
        metric="accuracy",
        loss="cross_entropy",
        split="official: 3,500 / 500 / 1,000 graphs",
        summary=f"5,000 function call graphs of Android apps, four kinds of malware and harmless ones; {features}",
        features=Features(node=width, classes=5),
        statistics=Statistics(5000, 1410.3, 2859.9, directed=True, sizes=(3500, 500, 1000)),
        sample=partial(make_sample, featurize=partial(featurize, kind=name)) if derived else None,
        source=Source(
            "Freitas, Dong, Neil and Chau, A Large-Scale Database for Graph Representation Learning, NeurIPS 2021 "
            "Datasets and Benchmarks",
            "CC BY",
            "mal-net.org",
        ),
        raw=RawFiles("MalNetTiny", FILES, urls=URLS),
    )


DEGREES, ONE_HOT = "degrees of a node and its neighbours as features", "a node's degree, one-hot, as features"
RECORDS = (
    _record("LocalDegreeProfile", "MalNet-Tiny", 5, DEGREES),
    _record("OneHotDegree", "MalNet-Tiny (one-hot degree)", MAX_DEGREE + 1, ONE_HOT),
    _record("", "MalNet-Tiny (constant)", 1, "no features", derived=False),
    _record("Constant", "MalNet-Tiny (constant)", 1, "no features", derived=False),
)
