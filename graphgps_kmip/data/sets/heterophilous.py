"""The heterophilous graphs of Platonov et al.: one graph each, ten official splits of 50/25/25 percent."""

from __future__ import annotations

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.transductive import node_record

SOURCE = Source(
    citation="Platonov, Kuznedelev, Diskin, Babenko and Prokhorenkova, A Critical Look at the Evaluation of GNNs under "
    "Heterophily, ICLR 2023",
    licence="MIT",
    page="github.com/yandex-research/heterophilous-graphs (folder data)",
)


def _record(name: str, nodes: int, edges: int, features: int, classes: int, summary: str) -> DatasetRecord:
    low = name.lower().replace("-", "_")
    train, val = nodes // 2, nodes // 4
    return node_record(
        "PyG-Heterophilous",
        "HeterophilousGraphDataset",
        {"name": name},
        name=name,
        title=name,
        metric="auc" if classes == 2 else "accuracy",
        split="10 official random splits of 50/25/25 percent",
        summary=summary,
        features=Features(node=features, classes=classes),
        statistics=Statistics(
            1, nodes, edges, edges_once=True, directed=False, sizes=(train, val, nodes - train - val)
        ),
        source=SOURCE,
        raw=RawFiles("HeterophilousGraphDataset", (f"raw/{low}.npz",), base=low),
    )


RECORDS = (
    _record("Roman-empire", 22662, 32927, 300, 18, "words of one long article; their syntactic role"),
    _record("Amazon-ratings", 24492, 93050, 300, 5, "goods that are bought together; their mean rating"),
    _record("Minesweeper", 10000, 39402, 7, 2, "cells of a 100x100 grid; which hide a mine"),
    _record("Tolokers", 11758, 519000, 10, 2, "workers who shared a project; which of them were banned"),
    _record("Questions", 48921, 153540, 301, 2, "users who answered each other's questions; which of them stay"),
)
