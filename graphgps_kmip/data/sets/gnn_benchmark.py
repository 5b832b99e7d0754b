"""Benchmarking GNNs: images as graphs of superpixels (MNIST, CIFAR10), block models (PATTERN, CLUSTER), and CSL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics

PAGE = "github.com/graphdeeplearning/benchmarking-gnns (folder data)"
SOURCE = Source(
    citation="Dwivedi, Joshi, Luu, Laurent, Bengio and Bresson, Benchmarking Graph Neural Networks, JMLR 2023",
    licence="MIT",
    page=PAGE,
)
CIRCLES = Source(
    citation="Murphy, Srinivasan, Rao and Ribeiro, Relational Pooling for Graph Representations, ICML 2019",
    licence="not stated",
    page=PAGE,
)


def load(home: str, name: str) -> GraphDataset:
    """Return the three official parts; an image's ``x`` is (colour, position), its ``edge_attr`` the distance."""
    from torch_geometric.datasets import GNNBenchmarkDataset

    parts = [GNNBenchmarkDataset(home, name, split) for split in SPLITS]
    for part in parts:
        graphs = part._data  # all graphs of the part, one after the other: cheaper than at each access
        if "pos" in graphs:
            graphs.x = torch.cat([graphs.x, graphs.pos], dim=1)
        if graphs.edge_attr is not None:
            graphs.edge_attr = graphs.edge_attr.view(-1, 1)
    return joined(parts)


def load_circles(home: str) -> Sequence[Data]:
    """Return the graphs of CSL, which are not divided and carry no features: ``x`` is a column of ones."""
    from torch_geometric.datasets import GNNBenchmarkDataset
    from torch_geometric.transforms import Constant

    return GNNBenchmarkDataset(home, "CSL", transform=Constant())


def _record(name: str, summary: str, features: Features, statistics: Statistics, **facts: str) -> DatasetRecord:
    file = f"{name}_v2"
    train, val, test = statistics.sizes
    return DatasetRecord(
        format="PyG-GNNBenchmarkDataset",
        name=name,
        title=name,
        load=partial(load, name=name),
        task_type="classification",
        split=f"official: {train:,} / {val:,} / {test:,} graphs",
        summary=summary,
        features=features,
        statistics=statistics,
        source=SOURCE,
        raw=RawFiles(
            "GNNBenchmarkDataset",
            (f"raw/{file}.pt",),
            base=name,
            archives=(f"{file}.zip",),
            urls={f"{file}.zip": f"https://data.pyg.org/datasets/benchmarking-gnns/{file}.zip"},
        ),
        **facts,
    )


IMAGES = {"metric": "accuracy", "loss": "cross_entropy"}
BLOCKS = {"level": "inductive_node", "metric": "accuracy-SBM", "loss": "weighted_cross_entropy"}
RECORDS = (
    _record(
        "MNIST",
        "70,000 images of handwritten digits as graphs of superpixels, each joined to its 8 nearest",
        Features(node=3, edge=1, classes=10, positions=2),
        Statistics(70000, 70.6, 564.5, directed=True, sizes=(55000, 5000, 10000)),
        **IMAGES,
    ),
    _record(
        "CIFAR10",
        "60,000 photographs as graphs of superpixels, each joined to its 8 nearest",
        Features(node=5, edge=1, classes=10, positions=2),
        Statistics(60000, 117.6, 941.2, directed=True, sizes=(45000, 5000, 10000)),
        **IMAGES,
    ),
    _record(
        "PATTERN",
        "14,000 random graphs of communities; which nodes belong to a planted pattern",
        Features(node=3, classes=2),
        Statistics(14000, 118.9, 6098.9, directed=False, sizes=(10000, 2000, 2000)),
        **BLOCKS,
    ),
    _record(
        "CLUSTER",
        "12,000 random graphs of six communities, one labelled node in each; where the others belong",
        Features(node=7, classes=6),
        Statistics(12000, 117.2, 4303.9, directed=False, sizes=(10000, 1000, 1000)),
        **BLOCKS,
    ),
    DatasetRecord(
        format="PyG-GNNBenchmarkDataset",
        name="CSL",
        title="CSL",
        load=load_circles,
        task_type="classification",
        split="none official: 60/20/20 at random; publications use dataset.split_mode cv-stratifiedkfold-5",
        summary="150 circles with skip links of ten lengths, which message passing alone cannot tell apart",
        features=Features(node=1, classes=10),
        statistics=Statistics(150, 41.0, 164.0, directed=False),
        source=CIRCLES,
        raw=RawFiles(
            "GNNBenchmarkDataset",
            ("raw/graphs_Kary_Deterministic_Graphs.pkl", "raw/y_Kary_Deterministic_Graphs.pt"),
            base="CSL",
            archives=("CSL.zip",),
            urls={"CSL.zip": "https://www.dropbox.com/s/rnbkp5ubgk82ocu/CSL.zip?dl=1"},
        ),
        **IMAGES,
    ),
)
