"""Benchmarking GNNs: superpixels (MNIST, CIFAR10), block models (PATTERN, CLUSTER), CSL, ZINC, AQSOL; and TUDataset."""

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


def load_tu(home: str, name: str, labelled: bool) -> Sequence[Data]:
    """Return the graphs; ``x`` is the node's label as one-hot, or a column of ones where nodes carry no label."""
    from torch_geometric.datasets import TUDataset
    from torch_geometric.transforms import Constant

    return TUDataset(home, name, transform=None if labelled else Constant())


def _tu(
    name: str, graphs: int, nodes: float, edges: float, labels: int, classes: int, summary: str, citation: str
) -> DatasetRecord:
    parts = ("A", "graph_indicator", "graph_labels", *(["node_labels"] if labels else []))
    return DatasetRecord(
        format="PyG-TUDataset",
        name=name,
        title=name,
        load=partial(load_tu, name=name, labelled=labels > 0),
        task_type="classification",
        fractions=(0.8, 0.1, 0.1),
        metric="accuracy",
        loss="cross_entropy",
        split="none official: 80/10/10 at random; publications use dataset.split_mode cv-stratifiedkfold-10",
        summary=summary,
        features=Features(node=labels or 1, classes=classes),
        statistics=Statistics(graphs, nodes, edges, edges_once=True, directed=False),
        source=Source(
            citation=f"{citation}; collected by Morris et al., TUDataset, ICML 2020 workshop GRL+",
            licence="not stated",
            page="chrsmrrs.github.io/datasets",
        ),
        raw=RawFiles(
            "TUDataset",
            tuple(f"raw/{name}_{part}.txt" for part in parts),
            base=name,
            urls={f"{name}.zip": f"https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"},
        ),
    )


COMPOUNDS = "Wale, Watson and Karypis, Comparison of Descriptor Spaces for Chemical Compound Retrieval, KAIS 2008"
KERNELS = "Yanardag and Vishwanathan, Deep Graph Kernels, KDD 2015"
ENZYMES = "Borgwardt et al., Protein Function Prediction via Graph Kernels, ISMB 2005"
FOLDS = "Dobson and Doig, Distinguishing Enzyme Structures from Non-enzymes without Alignments, JMB 2003"
# Name, graphs, mean nodes, mean edges (each once), node labels, classes: as on the page of the collection. COLLAB's
# edges are half of the 4,914.4 that the loading class counts: it drops repeated ones, with which the page has 2,457.78.
TU = (
    ("NCI1", 4110, 29.87, 32.30, 37, 2, "4,110 compounds; does one slow the growth of lung cancer cells", COMPOUNDS),
    ("COLLAB", 5000, 74.49, 2457.2, 0, 3, "5,000 circles of co-authors; which field of physics", KERNELS),
    ("IMDB-BINARY", 1000, 19.77, 96.53, 0, 2, "1,000 circles of actors; action or romance", KERNELS),
    ("IMDB-MULTI", 1500, 13.00, 65.94, 0, 3, "1,500 circles of actors; comedy, romance or science fiction", KERNELS),
    ("ENZYMES", 600, 32.63, 62.14, 3, 6, "600 enzymes; which of six kinds of reaction", ENZYMES),
    ("PROTEINS", 1113, 39.06, 72.82, 3, 2, "1,113 proteins; enzyme or not", FOLDS),
    ("DD", 1178, 284.32, 715.66, 89, 2, "1,178 proteins with amino acids as nodes; enzyme or not", FOLDS),
)
RECORDS = (
    *GRAPHS,
    _zinc("subset", "ZINC", "official: 10,000 / 1,000 / 1,000 of the molecules of ZINC-full", (10000, 1000, 1000)),
    _zinc("full", "ZINC-full", "official: 220,011 / 24,445 / 5,000 molecules", (220011, 24445, 5000)),
    AQSOL_RECORD,
    *(_tu(*row) for row in TU),
)
