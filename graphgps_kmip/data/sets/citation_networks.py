"""Planetoid: the citation networks Cora, CiteSeer and PubMed, one graph each, with the public split."""

from __future__ import annotations

from dataclasses import replace

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.transductive import node_record

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
SOURCE = Source(
    citation="Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, ICML 2016",
    licence="MIT",
    page="github.com/kimiyoung/planetoid (folder data)",
)


def _record(name: str, nodes: int, edges: int, features: int, classes: int, train: int) -> DatasetRecord:
    """Return the record of one graph; ``x`` holds raw word counts or tf-idf values."""
    low = name.lower()
    return node_record(
        "PyG-Planetoid",
        "Planetoid",
        {"name": name},
        name=name,
        title=name,
        split="public: 20 training nodes of each class, 500 validation and 1,000 test nodes",
        summary=f"citation network, {nodes:,} papers, {classes} subjects",
        features=Features(node=features, classes=classes),
        statistics=Statistics(1, nodes, edges, directed=False, sizes=(train, 500, 1000)),
        source=SOURCE,
        raw=RawFiles("Planetoid", tuple(f"raw/ind.{low}.{part}" for part in PARTS), base=name),
    )


PLANETOID = (
    _record("Cora", 2708, 10556, 1433, 7, 140),
    _record("CiteSeer", 3327, 9104, 3703, 6, 120),
    _record("PubMed", 19717, 88648, 500, 3, 60),
)
# GraphGym's own files say "PyG" only.
RECORDS = (*PLANETOID, *(replace(record, format="PyG") for record in PLANETOID))
