"""The full citation networks of graph2gauss: one graph each, without an official split."""

from __future__ import annotations

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.transductive import node_record

SOURCE = Source(
    citation="Bojchevski and Guennemann, Deep Gaussian Embedding of Graphs, ICLR 2018",
    licence="MIT",
    page="github.com/abojchevski/graph2gauss (folder data)",
)


def _record(name: str, nodes: int, edges: int, features: int, classes: int) -> DatasetRecord:
    low = name.lower()
    return node_record(
        "PyG-CitationFull",
        "CitationFull",
        {"name": name},
        name=name,
        title=f"CitationFull-{name}",
        summary=f"citation network, {nodes:,} papers, {classes} subjects; not the graph of that name in Planetoid",
        features=Features(node=features, classes=classes),
        statistics=Statistics(1, nodes, edges, directed=False),
        source=SOURCE,
        raw=RawFiles("CitationFull", (f"raw/{low}.npz",), base=low),
    )


RECORDS = (
    _record("Cora", 19793, 126842, 8710, 70),
    _record("Cora_ML", 2995, 16316, 2879, 7),
    _record("CiteSeer", 4230, 10674, 602, 6),
    _record("DBLP", 17716, 105734, 1639, 4),
    _record("PubMed", 19717, 88648, 500, 3),
)
