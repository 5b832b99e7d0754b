"""Open Graph Benchmark (OGB): ogbg-molhiv, molpcba, ppa, code2; ogbn-arxiv, products, proteins; ogbl-collab."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, scatter

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.ogb_tables import (
    CLASSES,
    NODE_ATTRIBUTES,
    NODE_TYPES,
    AssociationGraphs,
    OGBGraphs,
    SyntaxTrees,
    ogb_files,
    ogb_source,
    ogb_split,
)
from graphgps_kmip.data.safe_pickle import load_torch
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND
from graphgps_kmip.errors import InputError

COUNTS = ("edge", "num-node-list", "num-edge-list")
TREE_NODES = ("node_is_attributed", "node_dfs_order", "node_depth")
COLLAB = "ogbl-collab"
NEGATIVES_SEED = 0  # the same training negatives in every run
COLLAB_FILES = ogb_files(COLLAB, "linkproppred/collab", (*COUNTS, "node-feat"), "time", ending="pt")


def load_graphs(home: str, name: str, raw: RawFiles) -> GraphDataset:
    """Return the graphs with the official split.

    Labels: int64 (1,) for classes, float32 (1, labels) with NaN where unknown for several labels, int64 (1, 5) for the
    sub-tokens of code2. Graphs of ppa stay on disk.
    """
    split = list(ogb_split(home, raw).values())
    if name == "ogbg-ppa":
        return GraphDataset(AssociationGraphs(Path(home, raw.base), sum(map(len, split))), split)
    dataset = OGBGraphs(home, raw, one_way=name == "ogbg-code2")
    if name == "ogbg-code2":
        dataset.transform = SyntaxTrees.prepared(dataset, split[0])
    elif dataset._data.y.size(1) == 1:
        dataset._data.y = dataset._data.y.flatten()
    return GraphDataset(dataset, split)


def load_node(home: str, name: str, raw: RawFiles) -> Data:
    """Return the graph with the masks of the official split.

    Edges are as in the file where they have a direction (arxiv: from the citing to the cited paper); others are given
    in both. Proteins have no features of their own: ``x`` is the mean of ``edge_attr`` over the edges of each.
    """
    prepare = _mean_of_edges if name == "ogbn-proteins" else None
    graph = OGBGraphs(home, raw, one_way=name == "ogbn-arxiv", prepare=prepare)[0]
    split = ogb_split(home, raw)
    masks = {f"{part}_mask": index_to_mask(index, graph.num_nodes) for part, index in split.items()}
    y = graph.y.flatten() if graph.y.size(1) == 1 else graph.y.float()
    return Data(x=graph.x, edge_index=graph.edge_index, edge_attr=graph.edge_attr, y=y, **masks)


def _mean_of_edges(graph: Data) -> Data:
    graph.x = scatter(graph.edge_attr, graph.edge_index[1], dim=0, dim_size=graph.num_nodes, reduce="mean")
    return graph


def load_links(home: str) -> GraphDataset:
    """Return the graph three times, with the pairs that train, validate and test.

    All three share features and the edges of training. ``edge_label_index`` (2, L) holds the pairs, first those that
    work together, ``edge_label`` (L,) int64 is 1 for these. Negatives are ogb's; for training, which has none, as many
    pairs without an edge are drawn.
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
        graphs.append(_with_pairs(graph, positives, negatives))
    return GraphDataset(graphs, [[0], [1], [2]])


def random_negatives(edges: Tensor, num_nodes: int, seed: int) -> Tensor:
    """Draw as many pairs of different nodes as there are edges, none of them an edge in either direction.

    A pair may come twice, as it rarely does in a large graph.

    Shapes: edges (2, L) -> (2, L).

    Raises:
        ValueError: every pair of nodes is an edge.
    """
    generator = torch.Generator().manual_seed(seed)
    known = _pair_number(edges, num_nodes).unique()
    if len(known[known % (num_nodes + 1) != 0]) == num_nodes * (num_nodes - 1) // 2:
        raise InputError("every pair of nodes is an edge: there are no negatives to draw")
    found = edges[:, :0]
    while found.size(1) < edges.size(1):
        pairs = torch.randint(num_nodes, edges.shape, generator=generator)
        new = (pairs[0] != pairs[1]) & ~torch.isin(_pair_number(pairs, num_nodes), known)
        found = torch.cat([found, pairs[:, new]], dim=1)
    return found[:, : edges.size(1)]


def _pair_number(pairs: Tensor, num_nodes: int) -> Tensor:
    return pairs.amin(0) * num_nodes + pairs.amax(0)


def _with_pairs(graph: Data, positives: Tensor, negatives: Tensor) -> Data:
    labels = [torch.ones(positives.size(1), dtype=torch.long), torch.zeros(negatives.size(1), dtype=torch.long)]
    pairs = torch.cat([positives, negatives], dim=1)
    return Data(x=graph.x, edge_index=graph.edge_index, edge_label_index=pairs, edge_label=torch.cat(labels))


def _record(
    level: str,
    name: str,
    archive: str,
    tables: tuple[str, ...],
    features: Features,
    statistics: Statistics,
    *,
    split: str,
    summary: str,
    metric: str = "accuracy",
    task_type: str = "classification",
    loss: str = "cross_entropy",
    licence: str = "MIT",
    sample: Callable[[DatasetRecord, int], GraphDataset] | None = None,
) -> DatasetRecord:
    """Return the record of a data set whose graphs ("graph") or nodes ("node") have labels."""
    raw = ogb_files(name, f"{level}proppred/{archive}", (*COUNTS, f"{level}-label", *tables), split)
    return DatasetRecord(
        format="OGB",
        name=name,
        title=name,
        load=partial(load_graphs if level == "graph" else load_node, name=name, raw=raw),
        task_type=task_type,
        level=level,
        metric=metric,
        loss=loss,
        split=f"official, by {split.replace('_', ' ')}",
        summary=summary,
        features=features,
        statistics=statistics,
        source=ogb_source(level, licence),
        raw=raw,
        sample=sample,
    )


def sample_of_trees(record: DatasetRecord, seed: int = 0) -> GraphDataset:
    """Return the generic sample with the depth of each node in its tree, here 0, which the encoder asks for."""
    dataset = make_sample(record, seed)
    for graph in dataset.graphs:
        graph.node_depth = torch.zeros(graph.num_nodes, 1, dtype=torch.long)
    return dataset


GRAPHS = (
    _record(
        "graph",
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
        "graph",
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
        "graph",
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
        "graph",
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
)
NODES = (
    _record(
        "node",
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
        "node",
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
        "node",
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
LINKS = (
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
        source=ogb_source("link", "ODC-BY"),
        raw=COLLAB_FILES,
    ),
)
RECORDS = (*GRAPHS, *LINKS, *NODES)
