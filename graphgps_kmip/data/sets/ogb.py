"""Open Graph Benchmark, whole graphs: the molecules of molhiv and molpcba, protein neighbourhoods, syntax trees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Statistics
from graphgps_kmip.data.ogb_loading import ogb_files, ogb_source, open_ogb
from graphgps_kmip.data.ogb_tables import (
    CLASSES,
    NODE_ATTRIBUTES,
    NODE_TYPES,
    AssociationGraphs,
    SyntaxTrees,
    store,
)
from graphgps_kmip.data.synthetic_sample import make_sample
from graphgps_kmip.encoding.molecule import ATOM, BOND

COUNTS = ("edge", "num-node-list", "num-edge-list", "graph-label")
TREE_NODES = ("node_is_attributed", "node_dfs_order", "node_depth")


def load(home: str, name: str, raw: RawFiles) -> GraphDataset:
    """Return the graphs with the official split.

    Labels: int64 (1,) for classes, float32 (1, labels) with NaN where unknown for several labels, int64 (1, 5) for the
    sub-tokens of code2. Graphs of ppa stay on disk.
    """
    on_disk = name == "ogbg-ppa"
    dataset = open_ogb("graph", home, name, raw, process=store if on_disk else None)
    split = [dataset.get_idx_split()[part] for part in ("train", "valid", "test")]
    if on_disk:
        return GraphDataset(AssociationGraphs(dataset, sum(map(len, split))), split)
    if name == "ogbg-code2":
        dataset.transform = SyntaxTrees.prepared(dataset, split[0])
    elif dataset._data.y.size(1) == 1:
        dataset._data.y = dataset._data.y.flatten()
    return GraphDataset(dataset, split)


def _record(
    name: str,
    files: RawFiles,
    features: Features,
    statistics: Statistics,
    *,
    metric: str,
    summary: str,
    split: str,
    task_type: str = "classification",
    loss: str = "cross_entropy",
    licence: str = "MIT",
    sample: Callable[[DatasetRecord, int], GraphDataset] | None = None,
) -> DatasetRecord:
    return DatasetRecord(
        format="OGB",
        name=name,
        title=name,
        load=partial(load, name=name, raw=files),
        task_type=task_type,
        metric=metric,
        loss=loss,
        split=f"official, {split}",
        summary=summary,
        features=features,
        statistics=statistics,
        source=ogb_source("graph", licence),
        raw=files,
        sample=sample,
    )


def sample_of_trees(record: DatasetRecord, seed: int = 0) -> GraphDataset:
    """Return the generic sample with the depth of each node in its tree, here 0, which the encoder asks for."""
    dataset = make_sample(record, seed)
    for graph in dataset.graphs:
        graph.node_depth = torch.zeros(graph.num_nodes, 1, dtype=torch.long)
    return dataset


def _files(name: str, archive: str, split: str, *more: str, others: tuple[str, ...] = ()) -> RawFiles:
    parts = tuple(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test"))
    return ogb_files(name, archive, (*COUNTS, *more), (*parts, *others))


RECORDS = (
    _record(
        "ogbg-molhiv",
        _files("ogbg-molhiv", "hiv", "scaffold", "node-feat", "edge-feat"),
        Features(ATOM, BOND, classes=2),
        Statistics(41127, 25.5, 27.5, edges_once=True, directed=False, sizes=(32901, 4113, 4113)),
        metric="auc",
        summary="molecules: does one inhibit the replication of HIV?",
        split="by scaffold",
    ),
    _record(
        "ogbg-molpcba",
        _files("ogbg-molpcba", "pcba", "scaffold", "node-feat", "edge-feat"),
        Features(ATOM, BOND, classes=128),
        Statistics(437929, 26.0, 28.1, edges_once=True, directed=False, sizes=(350343, 43793, 43793)),
        metric="ap",
        summary="molecules: which of 128 biological assays is one active in? Many labels are unknown (NaN)",
        split="by scaffold",
        task_type="classification_multilabel",
    ),
    _record(
        "ogbg-ppa",
        _files("ogbg-ppa", "ogbg_ppi_medium", "species", "edge-feat"),
        Features((1,), 7, classes=37),
        Statistics(158100, 243.4, 2266.1, edges_once=True, directed=False, sizes=(78200, 45100, 34800)),
        metric="accuracy",
        summary="neighbourhoods in protein association networks: of which of 37 taxonomic groups?",
        split="by species",
        licence="CC-0",
    ),
    _record(
        "ogbg-code2",
        _files("ogbg-code2", "code2", "project", "node-feat", *TREE_NODES),
        Features((NODE_TYPES, NODE_ATTRIBUTES), (2, 2), classes=CLASSES),
        # Published are 124.2 edges, those of the trees in one direction; ours are both ways, and between tokens.
        Statistics(452741, 125.2, None, directed=False, sizes=(407976, 22817, 21948)),
        metric="f1",
        summary="syntax trees of Python methods: the sub-tokens of a method's name",
        split="by project",
        task_type="subtoken_prediction",
        loss="subtoken_cross_entropy",
        sample=sample_of_trees,
    ),
)
