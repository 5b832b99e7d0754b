"""Heterophilous graphs: those of Platonov et al., and of Geom-GCN (WebKB, Wikipedia, Actor); ten official splits each.

Each is one graph whose neighbours often differ in their class: words, web pages, articles, actors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics, node_record

PLATONOV_SOURCE = Source(
    citation="Platonov, Kuznedelev, Diskin, Babenko and Prokhorenkova, A Critical Look at the Evaluation of GNNs under "
    "Heterophily, ICLR 2023",
    licence="MIT",
    page="github.com/yandex-research/heterophilous-graphs (folder data)",
)


def _platonov(name: str, nodes: int, edges: int, features: int, classes: int, summary: str) -> DatasetRecord:
    low = name.lower().replace("-", "_")
    train, val = nodes // 2, nodes // 4
    url = f"https://github.com/yandex-research/heterophilous-graphs/raw/main/data/{low}.npz"
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
        source=PLATONOV_SOURCE,
        raw=RawFiles("HeterophilousGraphDataset", (f"raw/{low}.npz",), base=low, urls={f"raw/{low}.npz": url}),
    )


PLATONOV = (
    _platonov("Roman-empire", 22662, 32927, 300, 18, "words of one long article; their syntactic role"),
    _platonov("Amazon-ratings", 24492, 93050, 300, 5, "goods that are bought together; their mean rating"),
    _platonov("Minesweeper", 10000, 39402, 7, 2, "cells of a 100x100 grid; which hide a mine"),
    _platonov("Tolokers", 11758, 519000, 10, 2, "workers who shared a project; which of them were banned"),
    _platonov("Questions", 48921, 153540, 301, 2, "users who answered each other's questions; which of them stay"),
)
GEOM_GCN_SOURCE = Source(
    citation="Pei, Wei, Chang, Lei and Yang, Geom-GCN: Geometric Graph Convolutional Networks, ICLR 2020",
    licence="not stated",
    page="github.com/graphdml-uiuc-jlu/geom-gcn (folders new_data and splits)",
)

GEOM_GCN = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/f1fc0d14b3b019c562737240d06ec83b07d16a8f"


def _geom_gcn(
    kind: str,
    name: str,
    raw: tuple[str, str],
    counts: tuple[int, int, int],
    train_val: tuple[int, int],
    summary: str,
    directed: bool | None = True,
    **options: Any,
) -> DatasetRecord:
    (base, prefix), (nodes, edges, features), (train, val) = raw, counts, train_val
    files = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
    splits = tuple(f"{prefix}_split_0.6_0.2_{number}.npz" for number in range(10))
    return node_record(
        f"PyG-{kind}",
        kind,
        {"name": name, **options} if name else options,
        name=name,
        title=(name or kind).capitalize(),
        split="10 official splits of 48/32/20 percent (their files' names say 60/20/20)",
        summary=summary,
        features=Features(node=features, classes=5),
        statistics=Statistics(1, nodes, edges, directed=directed, sizes=(train, val, nodes - train - val)),
        source=GEOM_GCN_SOURCE,
        raw=RawFiles(
            kind,
            tuple(f"raw/{file}" for file in files + splits),
            base=base,
            urls={
                **{f"raw/{file}": f"{GEOM_GCN}/new_data/{prefix}/{file}" for file in files},
                **{f"raw/{file}": f"{GEOM_GCN}/splits/{file}" for file in splits},
            },
        ),
    )


def _university(name: str, nodes: int, edges: int, train_val: tuple[int, int], more: str = "") -> DatasetRecord:
    summary = f"web pages of a computer science department and their links; five kinds of page{more}"
    return _geom_gcn("WebKB", name, (name, name), (nodes, edges, 1703), train_val, summary)


def _wikipedia(name: str, nodes: int, edges: int, features: int, train_val: tuple[int, int]) -> DatasetRecord:
    summary = f"Wikipedia articles on {name}s and their links; five levels of traffic; many nodes are duplicates"
    raw = (f"{name}/geom_gcn", name)
    counts = (nodes, edges, features)
    return _geom_gcn("WikipediaNetwork", name, raw, counts, train_val, summary, geom_gcn_preprocess=True)


ACTOR = _geom_gcn(
    "Actor",
    "",
    ("", "film"),
    (7600, 30019, 932),
    (3648, 2432),
    "actors who stand on the same Wikipedia page; five categories from the words of their own pages",
    directed=None,
)
WIKIPEDIA = (
    _wikipedia("chameleon", 2277, 36101, 2325, (1092, 729)),
    _wikipedia("squirrel", 5201, 217073, 2089, (2496, 1664)),
)
COPY = (
    "; in the official folder its node features are those of Texas (known fault), edges, labels and splits are its own"
)
# Sp_Exphormer's YAMLs use names of their own; it draws its own split, here the official ones are used.
SP_EXPHORMER = tuple(
    replace(record, format=format, name=record.title.lower())
    for record in (ACTOR, *WIKIPEDIA)
    for format in ("PyG-actor", f"PyG-{record.title.lower()}")
)
RECORDS = (
    *PLATONOV,
    ACTOR,
    _university("texas", 183, 325, (87, 59)),
    _university("cornell", 183, 298, (87, 59), COPY),
    _university("wisconsin", 251, 515, (120, 80)),
    *WIKIPEDIA,
    *{record.key: record for record in SP_EXPHORMER}.values(),
)
