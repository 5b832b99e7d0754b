"""Open Graph Benchmark (OGB): molhiv, molpcba, ppa, code2; arxiv, products, proteins; collab; PCQM4Mv2 of OGB-LSC."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, scatter

from graphgps_kmip.common.progress import terminal_bar
from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.ogb_tables import (
    CLASSES,
    NODE_ATTRIBUTES,
    NODE_TYPES,
    SPLIT,
    OGBGraphs,
    SyntaxTrees,
    association_graphs,
    ogb_split,
)
from graphgps_kmip.data.point_clouds import Row, RowGraphs
from graphgps_kmip.data.safe_pickle import load_torch
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND
from graphgps_kmip.errors import DataError, InputError

HOME = "ogb"
COUNTS = ("edge", "num-node-list", "num-edge-list")
TREE_NODES = ("node_is_attributed", "node_dfs_order", "node_depth")
COLLAB = "ogbl-collab"
NEGATIVES_SEED = 0  # the same training negatives in every run


def _raw_files(name: str, archive: str, tables: tuple[str, ...], split: str, ending: str = "csv.gz") -> RawFiles:
    inside = archive.rpartition("/")[2]
    return RawFiles(
        HOME,
        (*(f"raw/{table}.csv.gz" for table in tables), *(f"split/{split}/{part}.{ending}" for part in SPLIT.values())),
        base=name.replace("-", "_"),
        inside=inside,
        urls={f"{inside}.zip": f"http://snap.stanford.edu/ogb/data/{archive}.zip"},
    )


def _source(level: str, licence: str) -> Source:
    citation = "Hu et al., Open Graph Benchmark: Datasets for Machine Learning on Graphs, NeurIPS 2020"
    return Source(citation, licence, f"ogb.stanford.edu/docs/{level}prop")


COLLAB_FILES = _raw_files(COLLAB, "linkproppred/collab", (*COUNTS, "node-feat"), "time", ending="pt")


def load_graphs(home: str, name: str, raw: RawFiles) -> GraphDataset:
    """Return the graphs with the official split.

    ``y``: int64 (1,) for classes, float32 (1, labels) with NaN where unknown, int64 (1, 5) for the sub-tokens of code2.
    """
    split = list(ogb_split(home, raw).values())
    if name == "ogbg-ppa":
        return GraphDataset(association_graphs(Path(home, raw.base), sum(map(len, split))), split)
    dataset = OGBGraphs(home, raw, one_way=name == "ogbg-code2")
    if name == "ogbg-code2":
        dataset.transform = SyntaxTrees.of(dataset, split[0])
    elif dataset._data.y.size(1) == 1:
        dataset._data.y = dataset._data.y.flatten()
    return GraphDataset(dataset, split)


def load_node(home: str, name: str, raw: RawFiles) -> Data:
    """Return the graph with the masks of the official split.

    Edges of arxiv have a direction, others are given in both; ``x`` of proteins is the mean of ``edge_attr``.
    """
    prepare = _average_edges if name == "ogbn-proteins" else None
    graph = OGBGraphs(home, raw, one_way=name == "ogbn-arxiv", prepare=prepare)[0]
    split = ogb_split(home, raw)
    masks = {f"{part}_mask": index_to_mask(index, graph.num_nodes) for part, index in split.items()}
    y = graph.y.flatten() if graph.y.size(1) == 1 else graph.y.float()
    return Data(x=graph.x, edge_index=graph.edge_index, edge_attr=graph.edge_attr, y=y, **masks)


def _average_edges(graph: Data) -> Data:
    graph.x = scatter(graph.edge_attr, graph.edge_index[1], dim=0, dim_size=graph.num_nodes, reduce="mean")
    return graph


def load_links(home: str) -> GraphDataset:
    """Return the graph three times, with the pairs that train, validate and test.

    ``edge_label_index`` (2, L) holds pairs, first those that work together; ``edge_label`` (L,) int64 is 1 for these.
    For training as many pairs without an edge are drawn; other negatives are ogb's.
    """
    graph = OGBGraphs(home, COLLAB_FILES)[0]
    graphs = []
    for file in COLLAB_FILES.files[-3:]:
        path = Path(home, COLLAB_FILES.base, file)
        with reading(path):
            pairs = {key: torch.as_tensor(value).long().T for key, value in load_torch(path).items() if "edge" in key}
            positives = pairs["edge"]
        negatives = pairs.get("edge_neg")
        if negatives is None:
            negatives = random_negatives(positives, graph.num_nodes, NEGATIVES_SEED)
        both = torch.cat([positives, negatives], dim=1)
        label = (torch.arange(both.size(1)) < positives.size(1)).long()
        graphs.append(Data(x=graph.x, edge_index=graph.edge_index, edge_label_index=both, edge_label=label))
    return GraphDataset(graphs, [[0], [1], [2]])


def random_negatives(edges: Tensor, num_nodes: int, seed: int) -> Tensor:
    """Draw as many pairs of different nodes as there are edges, none an edge in either direction; they may repeat.

    Shapes: edges (2, L) -> (2, L).
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = _pair_number(edges, num_nodes).unique()
    if len(numbers[numbers % (num_nodes + 1) != 0]) == num_nodes * (num_nodes - 1) // 2:
        raise InputError("every pair of nodes is an edge: there are no negatives to draw")
    drawn = edges[:, :0]
    while drawn.size(1) < edges.size(1):
        pairs = torch.randint(num_nodes, edges.shape, generator=generator)
        new = (pairs[0] != pairs[1]) & ~torch.isin(_pair_number(pairs, num_nodes), numbers)
        drawn = torch.cat([drawn, pairs[:, new]], dim=1)
    return drawn[:, : edges.size(1)]


def _pair_number(pairs: Tensor, num_nodes: int) -> Tensor:
    return pairs.amin(0) * num_nodes + pairs.amax(0)


# PCQM4Mv2: 3.7 million molecules and their HOMO-LUMO gaps, in a database on disk

PCQM_FILES = RawFiles(
    HOME,
    ("raw/data.csv.gz", "split_dict.pt"),
    base="pcqm4m-v2",
    inside="pcqm4m-v2",
    urls={"pcqm4m-v2.zip": "https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/pcqm4m-v2.zip"},
)
SPLIT_SEED = 42
VALIDATION, SUBSET_VALIDATION = 150_000, 50_000  # molecules, as in GraphGPS
MOLECULE = {
    "x": {"dtype": torch.uint8, "size": (-1, len(ATOM))},
    "edge_index": {"dtype": torch.int16, "size": (2, -1)},
    "edge_attr": {"dtype": torch.uint8, "size": (-1, len(BOND))},
    "y": {"dtype": torch.float32, "size": (1,)},
}


def molecule(smiles: str) -> dict[str, np.ndarray]:
    """Return ``x`` (N, 9), ``edge_index`` (2, E) and ``edge_attr`` (E, 3) of a molecule, int64."""
    try:
        from ogb.utils.mol import smiles2graph  # here: ogb asks the network for newer releases of itself
    except ImportError as error:
        raise DataError(
            "its molecules come as text, and RDKit, which makes graphs of them, is not installed: pip install rdkit"
        ) from error
    try:
        graph = smiles2graph(smiles)
    except (AttributeError, TypeError) as error:  # RDKit made no molecule of it
        raise InputError(f"{str(smiles)[:40]!r} is no molecule") from error
    return {"x": graph["node_feat"], "edge_index": graph["edge_index"], "edge_attr": graph["edge_feat"]}


def load_molecules(home: str, name: str) -> GraphDataset:
    """Return the molecules of PCQM4Mv2's "subset", "full" or "inference" with their splits, read on access."""
    folder = Path(home, PCQM_FILES.base)
    with reading(folder / "split_dict.pt"):
        official = {part: np.asarray(index) for part, index in load_torch(folder / "split_dict.pt").items()}
    parts = [np.sort(part) for part in _pcqm_splits(official, name)]
    ends = np.cumsum([len(part) for part in parts])
    splits = [torch.arange(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    path, rows = folder / "processed" / "molecules.db", partial(_molecule_rows, folder / "raw" / "data.csv.gz")
    return GraphDataset(RowGraphs(path, MOLECULE, rows, np.concatenate(parts), _molecule_graph), splits)


def _molecule_graph(row: Row) -> Data:
    return Data(**{key: row[key].long() for key in ("x", "edge_index", "edge_attr")}, y=row["y"].clone())


def _pcqm_splits(official: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    if name == "inference":
        return [official["valid"], official["test-dev"], official["test-challenge"]]
    order = np.random.default_rng(SPLIT_SEED).permutation(official["train"])
    validation, training = order[:VALIDATION], order[VALIDATION:]
    if name == "subset":
        validation, training = validation[:SUBSET_VALIDATION], training[: len(training) // 10]
    return [training, validation, official["valid"]]


def _molecule_rows(path: Path) -> Iterator[Row]:
    import pandas as pd

    with reading(path):
        table = pd.read_csv(path)
        gaps = zip(table["smiles"], table["homolumogap"], strict=True)
    for smiles, gap in terminal_bar(gaps, "PCQM4Mv2: molecules", total=len(table)):
        with reading(path):
            graph = molecule(smiles)
        yield {key: torch.as_tensor(graph.get(key, [gap])).to(MOLECULE[key]["dtype"]) for key in MOLECULE}


def _record(
    name: str,
    archive: str,
    tables: tuple[str, ...],
    features: Features,
    statistics: Statistics,
    split: str,
    licence: str = "MIT",
    **facts: Any,
) -> DatasetRecord:
    level = "graph" if name.startswith("ogbg") else "node"
    raw = _raw_files(name, f"{level}proppred/{archive}", (*COUNTS, f"{level}-label", *tables), split)
    usual = {"task_type": "classification", "metric": "accuracy", "loss": "cross_entropy"}
    return DatasetRecord(
        format="OGB",
        name=name,
        title=name,
        load=partial(load_graphs if level == "graph" else load_node, name=name, raw=raw),
        level=level,
        split=f"official, by {split.replace('_', ' ')}",
        features=features,
        statistics=statistics,
        source=_source(level, licence),
        raw=raw,
        **usual | facts,
    )


def _pcqm(name: str, sizes: tuple[int, int, int], split: str, summary: str) -> DatasetRecord:
    return DatasetRecord(
        format="OGB",
        name=f"PCQM4Mv2-{name}",
        title=f"PCQM4Mv2-{name}",
        load=partial(load_molecules, name=name),
        task_type="regression",
        metric="mae",
        loss="l1",
        split=split,
        summary=summary,
        features=Features(ATOM, BOND),
        statistics=Statistics(sum(sizes), 14.1, 14.6, edges_once=True, directed=False, sizes=sizes),
        source=Source(
            "Hu et al., OGB-LSC: A Large-Scale Challenge for Machine Learning on Graphs, NeurIPS 2021",
            "CC BY 4.0",
            "ogb.stanford.edu/docs/lsc/pcqm4mv2",
        ),
        raw=PCQM_FILES,
        unknown_targets=name == "inference",
    )


def sample_of_trees(record: DatasetRecord, seed: int = 0) -> GraphDataset:
    """Return the generic sample with the depth of each node in its tree, here 0, which the encoder asks for."""
    dataset = make_sample(record, seed)
    for graph in dataset.graphs:
        graph.node_depth = torch.zeros(graph.num_nodes, 1, dtype=torch.long)
    return dataset


OGB = (
    _record(
        "ogbg-molhiv",
        "csv_mol_download/hiv",
        ("node-feat", "edge-feat"),
        Features(ATOM, BOND, classes=2),
        Statistics(41127, 25.5, 27.5, edges_once=True, directed=False, sizes=(32901, 4113, 4113)),
        metric="auc",
        summary="molecules: does one inhibit the replication of HIV?",
        split="scaffold",
    ),
    _record(
        "ogbg-molpcba",
        "csv_mol_download/pcba",
        ("node-feat", "edge-feat"),
        Features(ATOM, BOND, classes=128),
        Statistics(437929, 26.0, 28.1, edges_once=True, directed=False, sizes=(350343, 43793, 43793)),
        metric="ap",
        summary="molecules: which of 128 biological assays is one active in? Many labels are unknown (NaN)",
        split="scaffold",
        task_type="classification_multilabel",
    ),
    _record(
        "ogbg-ppa",
        "ogbg_ppi_medium",
        ("edge-feat",),
        Features((1,), 7, classes=37),
        Statistics(158100, 243.4, 2266.1, edges_once=True, directed=False, sizes=(78200, 45100, 34800)),
        summary="neighbourhoods in protein association networks: of which of 37 taxonomic groups?",
        split="species",
        licence="CC-0",
    ),
    _record(
        "ogbg-code2",
        "code2",
        ("node-feat", *TREE_NODES),
        Features((NODE_TYPES, NODE_ATTRIBUTES), (2, 2), classes=CLASSES),
        # Published are 124.2 edges, those of the trees in one direction; ours are both ways, and between tokens.
        Statistics(452741, 125.2, None, directed=False, sizes=(407976, 22817, 21948)),
        metric="f1",
        summary="syntax trees of Python methods: the sub-tokens of a method's name",
        split="project",
        task_type="subtoken_prediction",
        loss="subtoken_cross_entropy",
        sample=sample_of_trees,
    ),
    DatasetRecord(
        format="OGB",
        name=COLLAB,
        title=COLLAB,
        load=load_links,
        task_type="link_prediction",
        loss="cross_entropy",
        level="link",
        metric="hits@50",
        split="official, by time: 1,179,052 / 60,084 / 46,329 pairs; 100,000 negatives to validate and to test",
        summary="collaborations between authors: which pairs will work together?",
        features=Features(128),
        # One graph, given three times. Of the 1,285,465 published edges those of training carry messages.
        statistics=Statistics(3, 235868, 1179052, edges_once=True, directed=False),
        source=_source("link", "ODC-BY"),
        raw=COLLAB_FILES,
    ),
    _record(
        "ogbn-arxiv",
        "arxiv",
        ("node-feat",),
        Features(128, classes=40),
        Statistics(1, 169343, 1166243, directed=True, sizes=(90941, 29799, 48603)),
        split="time",
        summary="citations between computer science papers, 40 subjects; edges have a direction",
        licence="ODC-BY",
    ),
    _record(
        "ogbn-products",
        "products",
        ("node-feat",),
        Features(100, classes=47),
        Statistics(1, 2449029, 61859140, edges_once=True, directed=False, sizes=(196615, 39323, 2213091)),
        split="sales_ranking",
        summary="products bought together at Amazon, 47 categories",
        licence="Amazon licence",
    ),
    _record(
        "ogbn-proteins",
        "proteins",
        ("edge-feat",),
        Features(8, 8, classes=112),
        Statistics(1, 132534, 39561252, edges_once=True, directed=False, sizes=(86619, 21236, 24679)),
        split="species",
        summary="associations between proteins of eight species: which of 112 functions does one have?",
        licence="CC-0",
        metric="auc",
        task_type="classification_multilabel",
    ),
)
HELD_OUT = "test is the official validation set, validation {} random molecules of the official training set"
PCQM = (
    _pcqm(
        "full",
        (3228606, 150000, 73545),
        HELD_OUT.format("150,000"),
        "3.4 million molecules: the HOMO-LUMO gap in electronvolts",
    ),
    _pcqm(
        "subset",
        (322860, 50000, 73545),
        HELD_OUT.format("50,000") + ", training a tenth of the rest",
        "a tenth of the training molecules of PCQM4Mv2-full, and a third of those that validate",
    ),
    _pcqm(
        "inference",
        (73545, 147037, 147432),
        "the official validation set, test-dev and test-challenge; the gaps of the latter two are not published (NaN)",
        "molecules to predict for the OGB-LSC challenge",
    ),
)
RECORDS = (*OGB, *PCQM)
