"""Benchmarking GNNs: superpixels (MNIST, CIFAR10), block models (PATTERN, CLUSTER), CSL, molecules (ZINC, AQSOL)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, join_parts
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics

PAGE = "github.com/graphdeeplearning/benchmarking-gnns (folder data)"
MOLECULES_PAGE = "github.com/graphdeeplearning/benchmarking-gnns (folder data/molecules)"
CITATION = "Dwivedi, Joshi, Luu, Laurent, Bengio and Bresson, Benchmarking Graph Neural Networks, JMLR 2023"
CIRCLES = "Murphy, Srinivasan, Rao and Ribeiro, Relational Pooling for Graph Representations, ICML 2019"


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
    return join_parts(parts)


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
        source=Source(CITATION, "MIT", PAGE),
        raw=RawFiles(
            "GNNBenchmarkDataset",
            (f"raw/{file}.pt",),
            base=name,
            urls={f"{file}.zip": f"https://data.pyg.org/datasets/benchmarking-gnns/{file}.zip"},
        ),
        **facts,
    )


IMAGES = {"metric": "accuracy", "loss": "cross_entropy"}
BLOCKS = {"level": "inductive_node", "metric": "accuracy-SBM", "loss": "weighted_cross_entropy"}
GRAPHS = (
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
        source=Source(CIRCLES, "not stated", PAGE),
        raw=RawFiles(
            "GNNBenchmarkDataset",
            ("raw/graphs_Kary_Deterministic_Graphs.pkl", "raw/y_Kary_Deterministic_Graphs.pt"),
            base="CSL",
            urls={"CSL.zip": "https://www.dropbox.com/s/rnbkp5ubgk82ocu/CSL.zip?dl=1"},
        ),
        **IMAGES,
    ),
)


PICKLES, INDICES = (tuple(f"{split}.{ending}" for split in SPLITS) for ending in ("pickle", "index"))
INDEX_URL = "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules"


def load_zinc(home: str, subset: bool) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import ZINC

    return join_parts([ZINC(home, subset, split) for split in SPLITS])


def load_aqsol(home: str) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import AQSOL

    parts = [AQSOL(home, split, pre_filter=_last_atom_is_bonded) for split in SPLITS]
    for part in parts:
        part._data.x = part._data.x.view(-1, 1)  # all graphs of the part, one after the other
    return join_parts(parts)


def _last_atom_is_bonded(graph: Data) -> bool:
    """Return whether the publication has a molecule: the class itself keeps some ten more than its 9,823."""
    return graph.num_edges > 0 and int(graph.edge_index.max()) == graph.num_nodes - 1


def _zinc(name: str, title: str, split: str, sizes: tuple[int, int, int]) -> DatasetRecord:
    return DatasetRecord(
        format="PyG-ZINC",
        name=name,
        title=title,
        load=partial(load_zinc, subset=name == "subset"),
        task_type="regression",
        metric="mae",
        loss="l1",
        split=split,
        summary=f"{sum(sizes):,} molecules with their penalised logP (solubility, ease of synthesis, long cycles)",
        features=Features(node=(28,), edge=(4,)),
        statistics=Statistics(sum(sizes), 23.2, 24.9, edges_once=True, directed=False, sizes=sizes),
        source=Source(CITATION, "MIT", MOLECULES_PAGE),
        raw=RawFiles(
            "ZINC",
            tuple(f"raw/{file}" for file in PICKLES + INDICES),
            archives=("molecules.zip", *INDICES),
            processed=f"{name}/processed",
            urls={
                "molecules.zip": "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1",
                **{f"raw/{file}": f"{INDEX_URL}/{file}" for file in INDICES},
            },
        ),
    )


AQSOL_RECORD = DatasetRecord(
    format="PyG-AQSOL",
    title="AQSOL",
    load=load_aqsol,
    task_type="regression",
    metric="mae",
    loss="l1",
    split="official: 80 / 10 / 10 % by scaffolds, the most frequent in training",
    summary="9,823 molecules with the logarithm of their solubility in water",
    features=Features(node=(65,), edge=(5,)),
    statistics=Statistics(9823, 17.6, 35.8, directed=False, sizes=(7831, 996, 996)),
    source=Source(f"Sorkun, Khetan and Er, AqSolDB, Scientific Data 2019; {CITATION}", "MIT", MOLECULES_PAGE),
    raw=RawFiles(
        "AQSOL",
        tuple(f"raw/{name}.pickle" for name in (*SPLITS, "atom_dict", "bond_dict")),
        unread=("raw/atom_dict.pickle", "raw/bond_dict.pickle"),  # objects of a class of the publication's code
        urls={"aqsol_graph_raw.zip": "https://www.dropbox.com/s/lzu9lmukwov12kt/aqsol_graph_raw.zip?dl=1"},
    ),
)
RECORDS = (
    *GRAPHS,
    _zinc("subset", "ZINC", "official: 10,000 / 1,000 / 1,000 of the molecules of ZINC-full", (10000, 1000, 1000)),
    _zinc("full", "ZINC-full", "official: 220,011 / 24,445 / 5,000 molecules", (220011, 24445, 5000)),
    AQSOL_RECORD,
)
