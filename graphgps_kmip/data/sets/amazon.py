"""Co-purchases of Amazon and co-authors of the Microsoft Academic Graph: one graph each, without an official split."""

from __future__ import annotations

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.transductive import node_record

SOURCE = Source(
    citation="Shchur, Mumme, Bojchevski and Guennemann, Pitfalls of Graph Neural Network Evaluation, R2L at "
    "NeurIPS 2018",
    licence="MIT",
    page="github.com/shchur/gnn-benchmark (folder data/npz)",
)


def _record(
    kind: str, name: str, base: str, file: str, nodes: int, edges: int, features: int, classes: int, summary: str
) -> DatasetRecord:
    return node_record(
        f"PyG-{kind}",
        kind,
        {"name": name},
        name=name,
        title=f"{kind}-{base}",
        summary=summary,
        features=Features(node=features, classes=classes),
        statistics=Statistics(1, nodes, edges, directed=False),
        source=SOURCE,
        raw=RawFiles(kind, (f"raw/{file}",), base=base),
    )


GOODS = "goods that are bought together; from the words of their reviews to their category"
AUTHORS = "authors that wrote a paper together; from the keywords of their papers to their field"
RECORDS = (
    _record("Amazon", "photo", "Photo", "amazon_electronics_photo.npz", 7650, 238162, 745, 8, GOODS),
    _record("Amazon", "computers", "Computers", "amazon_electronics_computers.npz", 13752, 491722, 767, 10, GOODS),
    _record("Coauthor", "cs", "CS", "ms_academic_cs.npz", 18333, 163788, 6805, 15, AUTHORS),
    _record("Coauthor", "physics", "Physics", "ms_academic_phy.npz", 34493, 495924, 8415, 5, AUTHORS),
)
