"""Data sets of one graph with classified nodes.

Planetoid, CitationFull, Amazon, Coauthor, WikiCS, Platonov et al., Geom-GCN (WebKB, Wikipedia, Actor), LINKX, Yelp.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.safe_pickle import holds_objects, load_pickle

Urls = dict[str, str]
GITHUB = "https://github.com"
RAW_GITHUB = "https://raw.githubusercontent.com"
PLANETOID_SOURCE = Source(
    "Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, ICML 2016",
    "MIT",
    "github.com/kimiyoung/planetoid (folder data)",
)
CITATION_FULL_SOURCE = Source(
    "Bojchevski and Guennemann, Deep Gaussian Embedding of Graphs, ICLR 2018",
    "MIT",
    "github.com/abojchevski/graph2gauss (folder data)",
)
SHCHUR_SOURCE = Source(
    "Shchur, Mumme, Bojchevski and Guennemann, Pitfalls of Graph Neural Network Evaluation, R2L at NeurIPS 2018",
    "MIT",
    "github.com/shchur/gnn-benchmark (folder data/npz)",
)
WIKICS_SOURCE = Source(
    "Mernyei and Cangea, Wiki-CS: A Wikipedia-Based Benchmark for Graph Neural Networks, GRL+ at ICML 2020",
    "MIT",
    "github.com/pmernyei/wiki-cs-dataset (folder dataset)",
)
PLATONOV_SOURCE = Source(
    "Platonov, Kuznedelev, Diskin, Babenko and Prokhorenkova, A Critical Look at the Evaluation of GNNs under "
    "Heterophily, ICLR 2023",
    "MIT",
    "github.com/yandex-research/heterophilous-graphs (folder data)",
)
GEOM_GCN_SOURCE = Source(
    "Pei, Wei, Chang, Lei and Yang, Geom-GCN: Geometric Graph Convolutional Networks, ICLR 2020",
    "not stated",
    "github.com/graphdml-uiuc-jlu/geom-gcn (folders new_data and splits)",
)
LINKX = "Lim, Hoehne, Li, Huang, Gupta, Bhalerao and Lim, Large Scale Learning on Non-Homophilous Graphs, NeurIPS 2021"
GRAPHSAINT = (
    "Zeng, Zhou, Srivastava, Kannan and Prasanna, GraphSAINT: Graph Sampling Based Inductive Learning Method, ICLR 2020"
)
REDDIT = "Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017"


def _urls(folder: str, files: Iterable[str]) -> Urls:
    return {f"raw/{file}": f"{folder}/{file}" for file in files}


def _google_drive(ids: dict[str, str]) -> Urls:
    address = "https://drive.usercontent.google.com/download?id={}&confirm=t"
    return {f"raw/{name}": address.format(number) for name, number in ids.items()}


def load_graph(home: str, kind: str, **options: Any) -> Data:
    """Return the one graph of a data set of torch_geometric: class `kind`, with root folder `home`."""
    from torch_geometric import datasets  # a second of imports, which runs on other data need not spend

    return getattr(datasets, kind)(home, **options)[0]


def node_record(
    kind: str,
    name: str,
    size: tuple[int, int, int, int],  # nodes, edges, features of a node, classes
    source: Source,
    urls: Urls,
    *,
    base: str = "",
    parts: tuple[int, int, int] | None = None,
    directed: bool | None = False,
    edges_once: bool = False,
    options: dict[str, Any] | None = None,
    **facts: Any,
) -> DatasetRecord:
    """Return the record of a graph that the class `kind` of torch_geometric loads with the arguments `options`.

    Nodes are divided by masks, and have single labels unless ``facts``, further fields of the record, say otherwise.
    """
    nodes, edges, features, classes = size
    options = ({"name": name} if name else {}) if options is None else options
    usual = {
        "format": f"PyG-{kind}",
        "name": name,
        "title": name or kind,
        "level": "node",
        "load": partial(load_graph, kind=kind, **options),
        "task_type": "classification",
        "metric": "accuracy",
        "loss": "cross_entropy",
        "features": Features(node=features, classes=classes),
        "statistics": Statistics(1, nodes, edges, edges_once, directed, parts),
        "source": source,
        "raw": RawFiles(kind, tuple(urls), base=base, urls=urls),
    }
    return DatasetRecord(**usual | facts)


# Citation networks and their like


def _planetoid(name: str, size: tuple[int, int, int, int], train: int) -> DatasetRecord:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return node_record(
        "Planetoid",
        name,
        size,
        PLANETOID_SOURCE,
        _urls(f"{GITHUB}/kimiyoung/planetoid/raw/master/data", (f"ind.{name.lower()}.{part}" for part in parts)),
        base=name,
        parts=(train, 500, 1000),
        split="public: 20 training nodes of each class, 500 validation and 1,000 test nodes",
        summary=f"citation network, {size[0]:,} papers, {size[3]} subjects",
    )


def _citation_full(name: str, size: tuple[int, int, int, int]) -> DatasetRecord:
    low = name.lower()
    return node_record(
        "CitationFull",
        name,
        size,
        CITATION_FULL_SOURCE,
        _urls(f"{GITHUB}/abojchevski/graph2gauss/raw/master/data", [f"{low}.npz"]),
        base=low,
        title=f"CitationFull-{name}",
        summary=f"citation network, {size[0]:,} papers, {size[3]} subjects; not the graph of that name in Planetoid",
    )


def _shchur(kind: str, base: str, file: str, size: tuple[int, int, int, int], summary: str) -> DatasetRecord:
    urls = _urls(f"{GITHUB}/shchur/gnn-benchmark/raw/master/data/npz", [file])
    title = f"{kind}-{base}"
    return node_record(kind, base.lower(), size, SHCHUR_SOURCE, urls, base=base, title=title, summary=summary)


GOODS = "goods that are bought together; from the words of their reviews to their category"
AUTHORS = "authors that wrote a paper together; from the keywords of their papers to their field"
PLANETOID = (
    _planetoid("Cora", (2708, 10556, 1433, 7), 140),
    _planetoid("CiteSeer", (3327, 9104, 3703, 6), 120),
    _planetoid("PubMed", (19717, 88648, 500, 3), 60),
)
CITATIONS = (
    *PLANETOID,
    *(replace(record, format="PyG") for record in PLANETOID),  # GraphGym's own files say "PyG" only
    _citation_full("Cora", (19793, 126842, 8710, 70)),
    _citation_full("Cora_ML", (2995, 16316, 2879, 7)),
    _citation_full("CiteSeer", (4230, 10674, 602, 6)),
    _citation_full("DBLP", (17716, 105734, 1639, 4)),
    _citation_full("PubMed", (19717, 88648, 500, 3)),
    _shchur("Amazon", "Photo", "amazon_electronics_photo.npz", (7650, 238162, 745, 8), GOODS),
    _shchur("Amazon", "Computers", "amazon_electronics_computers.npz", (13752, 491722, 767, 10), GOODS),
    _shchur("Coauthor", "CS", "ms_academic_cs.npz", (18333, 163788, 6805, 15), AUTHORS),
    _shchur("Coauthor", "Physics", "ms_academic_phy.npz", (34493, 495924, 8415, 5), AUTHORS),
    node_record(
        "WikiCS",
        "",
        (11701, 431726, 300, 10),  # the paper's 216,123 edges are links; these are both ways, without duplicates
        WIKICS_SOURCE,
        _urls(f"{GITHUB}/pmernyei/wiki-cs-dataset/raw/master/dataset", ["data.json"]),
        parts=(580, 1769, 5847),
        options={"is_undirected": True},
        split="20 official splits of the training, validation and early-stopping nodes; one test part",
        summary="articles on computer science and their links, taken both ways; 10 branches of the field",
    ),
)

# Heterophilous graphs, whose neighbours often differ in their class; ten official splits each


def _platonov(name: str, size: tuple[int, int, int, int], summary: str) -> DatasetRecord:
    low, nodes = name.lower().replace("-", "_"), size[0]
    train, val = nodes // 2, nodes // 4
    return node_record(
        "HeterophilousGraphDataset",
        name,
        size,
        PLATONOV_SOURCE,
        _urls(f"{GITHUB}/yandex-research/heterophilous-graphs/raw/main/data", [f"{low}.npz"]),
        base=low,
        parts=(train, val, nodes - train - val),
        edges_once=True,
        format="PyG-Heterophilous",
        metric="auc" if size[3] == 2 else "accuracy",
        split="10 official random splits of 50/25/25 percent",
        summary=summary,
    )


def _geom_gcn(
    kind: str, name: str, folder: str, size: tuple[int, int, int], train_val: tuple[int, int], **facts: Any
) -> DatasetRecord:
    server = f"{RAW_GITHUB}/graphdml-uiuc-jlu/geom-gcn/f1fc0d14b3b019c562737240d06ec83b07d16a8f"
    splits = (f"{folder}_split_0.6_0.2_{number}.npz" for number in range(10))
    return node_record(
        kind,
        name,
        (*size, 5),
        GEOM_GCN_SOURCE,
        _urls(f"{server}/new_data/{folder}", ["out1_node_feature_label.txt", "out1_graph_edges.txt"])
        | _urls(f"{server}/splits", splits),
        parts=(*train_val, size[0] - sum(train_val)),
        title=(name or kind).capitalize(),
        split="10 official splits of 48/32/20 percent (their files' names say 60/20/20)",
        **{"directed": True, **facts},
    )


def _university(name: str, nodes: int, edges: int, train_val: tuple[int, int], more: str = "") -> DatasetRecord:
    summary = f"web pages of a computer science department and their links; five kinds of page{more}"
    return _geom_gcn("WebKB", name, name, (nodes, edges, 1703), train_val, base=name, summary=summary)


def _wikipedia(name: str, size: tuple[int, int, int], train_val: tuple[int, int]) -> DatasetRecord:
    return _geom_gcn(
        "WikipediaNetwork",
        name,
        name,
        size,
        train_val,
        base=f"{name}/geom_gcn",
        options={"name": name, "geom_gcn_preprocess": True},
        summary=f"Wikipedia articles on {name}s and their links; five levels of traffic; many nodes are duplicates",
    )


FAULT = (
    "; in the official folder its node features are those of Texas (known fault), edges, labels and splits are its own"
)
ACTOR = _geom_gcn(
    "Actor",
    "",
    "film",
    (7600, 30019, 932),
    (3648, 2432),
    directed=None,
    summary="actors named on the same Wikipedia page; five categories from the words of their own pages",
)
WIKIPEDIA = (
    _wikipedia("chameleon", (2277, 36101, 2325), (1092, 729)),
    _wikipedia("squirrel", (5201, 217073, 2089), (2496, 1664)),
)
# Sp_Exphormer's YAMLs use names of their own; it draws its own split, here the official ones are used.
SP_EXPHORMER = tuple(
    replace(record, format=format, name=record.title.lower())
    for record in (ACTOR, *WIKIPEDIA)
    for format in ("PyG-actor", f"PyG-{record.title.lower()}")
)
HETEROPHILOUS = (
    _platonov("Roman-empire", (22662, 32927, 300, 18), "words of one long article; their syntactic role"),
    _platonov("Amazon-ratings", (24492, 93050, 300, 5), "goods that are bought together; their mean rating"),
    _platonov("Minesweeper", (10000, 39402, 7, 2), "cells of a 100x100 grid; which hide a mine"),
    _platonov("Tolokers", (11758, 519000, 10, 2), "workers who shared a project; which of them were banned"),
    _platonov("Questions", (48921, 153540, 301, 2), "users who answered each other's questions; which of them stay"),
    ACTOR,
    _university("texas", 183, 325, (87, 59)),
    _university("cornell", 183, 298, (87, 59), FAULT),
    _university("wisconsin", 251, 515, (120, 80)),
    *WIKIPEDIA,
    *{record.key: record for record in SP_EXPHORMER}.values(),
)

# Social networks

# Google Drive names of the files of LINKX that torch_geometric has no class for, and of GraphSAINT's data sets.
POKEC = {"pokec.mat": "1dNs5E7BrWJbgcHeQ_zuy5Ozp2tRCWG0y", "pokec-splits.npy": "1ZhpAiyTNc0cE_hhgyiqxnkKREHK7MK-_"}
FLICKR = {
    "adj_full.npz": "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
    "feats.npy": "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
    "class_map.json": "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
    "role.json": "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
}
YELP = {
    "adj_full.npz": "1Juwx8HtDwSzmVIJ31ooVa1WljI4U5JnA",
    "feats.npy": "1Zy6BZH_zLEjKlEFSduKE5tV9qqA_8VtM",
    "class_map.json": "1VUcBGr0T0-klqerjAjxRmAqFuld_SMWU",
    "role.json": "1NI5pa5Chpd-52eSmLW60OnB3WS5ikxq_",
}
LINKX_PAGE = "github.com/CUAI/Non-Homophily-Large-Scale"
LINKX_DATA = f"https://{LINKX_PAGE}/raw/master/data"
LINKX_SPLIT = "5 official random splits of the labelled nodes, 50/25/25 percent"


def load_pokec(home: str) -> Data:
    """Return the graph of LINKX: friendships, 65 columns of the profiles, gender as the label.

    Shapes: masks (N, S) for S splits; users of unknown gender have label -1 and are in no part.
    """
    import numpy as np
    import torch
    from scipy.io import loadmat
    from torch_geometric.utils import index_to_mask

    graph, split = (Path(home, "raw", name) for name in POKEC)
    with reading(graph):
        raw = loadmat(graph)
    with reading(split), open(split, "rb") as file:
        holds_objects(file)  # the header, before the objects
        splits = load_pickle(file)
    data = Data(
        x=torch.from_numpy(raw["node_feat"]).float(),
        edge_index=torch.from_numpy(raw["edge_index"].astype(np.int64)),
        y=torch.from_numpy(raw["label"].astype(np.int64)).flatten(),
    )
    for name, key in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        parts = [torch.as_tensor(split[key]) for split in splits]
        data[name] = torch.stack([index_to_mask(part, data.num_nodes) for part in parts], dim=1)
    return data


PENN94 = node_record(
    "LINKXDataset",
    "Penn94",
    (41554, 1362229, 4814, 2),
    Source(LINKX, "not stated", f"{LINKX_PAGE} (data/facebook100/Penn94.mat, to be named data.mat, and data/splits)"),
    {"raw/data.mat": f"{LINKX_DATA}/facebook100/Penn94.mat"}
    | _urls(f"{LINKX_DATA}/splits", ["fb100-Penn94-splits.npy"]),
    base="penn94",
    edges_once=True,
    options={"name": "penn94"},
    format="PyG-actor",
    split=LINKX_SPLIT,
    summary="Facebook friendships at one university in 2005; gender from profile entries, unknown for some nodes",
)
SOCIAL = (
    PENN94,
    replace(PENN94, format="PyG-Penn94"),
    node_record(
        "Pokec",
        "pokec",
        (1632803, 30622564, 65, 2),
        Source(LINKX, "not stated", f"{LINKX_PAGE} (Google Drive links in dataset.py and data_utils.py)"),
        _google_drive(POKEC),
        directed=True,
        format="SNAP",
        load=load_pokec,
        split=LINKX_SPLIT,
        summary="friendships of a Slovak social network, as LINKX prepared them; gender from the rest of the profile",
    ),
    node_record(
        "Flickr",
        "",
        (89250, 899756, 500, 7),
        Source(GRAPHSAINT, "not stated", "github.com/GraphSAINT/GraphSAINT (Google Drive folder flickr)"),
        _google_drive(FLICKR),
        parts=(44625, 22312, 22313),
        split="official masks, 50/25/25 percent",
        summary="pictures that share a place, gallery or group; from the words of their descriptions to 7 kinds",
    ),
    node_record(
        "Reddit",
        "",
        (232965, 114615892, 602, 41),
        Source(REDDIT, "not stated", "data.dgl.ai/dataset/reddit.zip"),
        {},
        parts=(153431, 23831, 55703),
        split="official masks, by day: 66/10/24 percent",
        summary="posts that the same users commented on; 41 communities; 114 million edges",
        raw=RawFiles(
            "Reddit",
            ("raw/reddit_data.npz", "raw/reddit_graph.npz"),
            urls={"reddit.zip": "https://data.dgl.ai/dataset/reddit.zip"},
        ),
    ),
    node_record(
        "Yelp",
        "",
        (716847, 13954819, 300, 100),
        Source(GRAPHSAINT, "not stated", "github.com/GraphSAINT/GraphSAINT (Google Drive folder yelp)"),
        _google_drive(YELP),
        parts=(537635, 107527, 71685),
        directed=None,
        task_type="classification_multilabel",
        metric="f1",
        split="official masks, 75/15/10 percent",
        summary="reviewers and their friends; 100 kinds of business that they reviewed",
    ),
)
RECORDS = (*CITATIONS, *HETEROPHILOUS, *SOCIAL)
