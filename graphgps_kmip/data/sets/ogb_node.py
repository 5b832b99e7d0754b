"""Open Graph Benchmark, nodes of one graph: the papers of arxiv, the products and proteins of the like-named sets."""

from __future__ import annotations

from functools import partial

from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, scatter

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Statistics
from graphgps_kmip.data.ogb_loading import ogb_files, ogb_source, open_ogb

COUNTS = ("edge", "num-node-list", "num-edge-list", "node-label")


def load(home: str, name: str, raw: RawFiles) -> Data:
    """Return the graph with the masks of the official split.

    Edges are as in the file where they have a direction (arxiv: from the citing to the cited paper); both directions
    of the others are there. Proteins have no features of their own: ``x`` is the mean of ``edge_attr`` over the edges
    of each.
    """
    dataset = open_ogb("node", home, name, raw, prepare=_mean_of_edges if name == "ogbn-proteins" else None)
    graph, split = dataset[0], dataset.get_idx_split()
    masks = {
        f"{ours}_mask": index_to_mask(split[ogbs], graph.num_nodes)
        for ours, ogbs in (("train", "train"), ("val", "valid"), ("test", "test"))
    }
    y = graph.y.flatten() if graph.y.size(1) == 1 else graph.y.float()
    return Data(x=graph.x, edge_index=graph.edge_index, edge_attr=graph.edge_attr, y=y, **masks)


def _mean_of_edges(graph: Data) -> Data:
    graph.x = scatter(graph.edge_attr, graph.edge_index[1], dim=0, dim_size=graph.num_nodes, reduce="mean")
    return graph


def _record(
    name: str,
    archive: str,
    files: tuple[str, ...],
    features: Features,
    statistics: Statistics,
    *,
    split: str,
    summary: str,
    licence: str,
    metric: str = "accuracy",
    task_type: str = "classification",
) -> DatasetRecord:
    parts = tuple(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test"))
    raw = ogb_files(name, archive, (*COUNTS, *files), parts)
    return DatasetRecord(
        format="OGB",
        name=name,
        title=name,
        load=partial(load, name=name, raw=raw),
        task_type=task_type,
        level="node",
        metric=metric,
        loss="cross_entropy",
        split=f"official, by {split.replace('_', ' ')}",
        summary=summary,
        features=features,
        statistics=statistics,
        source=ogb_source("node", licence),
        raw=raw,
    )


RECORDS = (
    _record(
        "ogbn-arxiv",
        "arxiv",
        ("node-feat", "node_year"),
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
        ("edge-feat", "node_species"),
        Features(8, 8, classes=112),
        Statistics(1, 132534, 39561252, edges_once=True, directed=False, sizes=(86619, 21236, 24679)),
        split="species",
        summary="associations between proteins of eight species: which of 112 functions does one have?",
        licence="CC-0",
        metric="auc",
        task_type="classification_multilabel",
    ),
)
