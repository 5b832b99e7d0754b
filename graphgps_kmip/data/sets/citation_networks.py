"""Citation networks and their like: Planetoid, CitationFull, Amazon, Coauthor and WikiCS; one graph each.

Planetoid (Cora, CiteSeer, PubMed) has the public split, WikiCS twenty official ones; the full citation networks of
graph2gauss, the co-purchases of Amazon and the co-authors of the Microsoft Academic Graph have none.
"""

from __future__ import annotations

from dataclasses import replace

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics, node_record

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def _planetoid(name: str, nodes: int, edges: int, features: int, classes: int, train: int) -> DatasetRecord:
    """Return the record of one graph; ``x`` holds raw word counts or tf-idf values."""
    files = tuple(f"ind.{name.lower()}.{part}" for part in PARTS)
    url = "https://github.com/kimiyoung/planetoid/raw/master/data"
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
        source=Source(
            citation="Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, "
            "ICML 2016",
            licence="MIT",
            page="github.com/kimiyoung/planetoid (folder data)",
        ),
        raw=RawFiles(
            "Planetoid",
            tuple(f"raw/{file}" for file in files),
            base=name,
            urls={f"raw/{file}": f"{url}/{file}" for file in files},
        ),
    )


def _full(name: str, nodes: int, edges: int, features: int, classes: int) -> DatasetRecord:
    low = name.lower()
    url = f"https://github.com/abojchevski/graph2gauss/raw/master/data/{low}.npz"
    return node_record(
        "PyG-CitationFull",
        "CitationFull",
        {"name": name},
        name=name,
        title=f"CitationFull-{name}",
        summary=f"citation network, {nodes:,} papers, {classes} subjects; not the graph of that name in Planetoid",
        features=Features(node=features, classes=classes),
        statistics=Statistics(1, nodes, edges, directed=False),
        source=Source(
            citation="Bojchevski and Guennemann, Deep Gaussian Embedding of Graphs, ICLR 2018",
            licence="MIT",
            page="github.com/abojchevski/graph2gauss (folder data)",
        ),
        raw=RawFiles("CitationFull", (f"raw/{low}.npz",), base=low, urls={f"raw/{low}.npz": url}),
    )


def _shchur(
    kind: str, name: str, base: str, file: str, nodes: int, edges: int, features: int, classes: int, summary: str
) -> DatasetRecord:
    url = f"https://github.com/shchur/gnn-benchmark/raw/master/data/npz/{file}"
    return node_record(
        f"PyG-{kind}",
        kind,
        {"name": name},
        name=name,
        title=f"{kind}-{base}",
        summary=summary,
        features=Features(node=features, classes=classes),
        statistics=Statistics(1, nodes, edges, directed=False),
        source=Source(
            citation="Shchur, Mumme, Bojchevski and Guennemann, Pitfalls of Graph Neural Network Evaluation, R2L at "
            "NeurIPS 2018",
            licence="MIT",
            page="github.com/shchur/gnn-benchmark (folder data/npz)",
        ),
        raw=RawFiles(kind, (f"raw/{file}",), base=base, urls={f"raw/{file}": url}),
    )


GOODS = "goods that are bought together; from the words of their reviews to their category"
AUTHORS = "authors that wrote a paper together; from the keywords of their papers to their field"
PLANETOID = (
    _planetoid("Cora", 2708, 10556, 1433, 7, 140),
    _planetoid("CiteSeer", 3327, 9104, 3703, 6, 120),
    _planetoid("PubMed", 19717, 88648, 500, 3, 60),
)
CITATION_FULL = (
    _full("Cora", 19793, 126842, 8710, 70),
    _full("Cora_ML", 2995, 16316, 2879, 7),
    _full("CiteSeer", 4230, 10674, 602, 6),
    _full("DBLP", 17716, 105734, 1639, 4),
    _full("PubMed", 19717, 88648, 500, 3),
)
SHCHUR = (
    _shchur("Amazon", "photo", "Photo", "amazon_electronics_photo.npz", 7650, 238162, 745, 8, GOODS),
    _shchur("Amazon", "computers", "Computers", "amazon_electronics_computers.npz", 13752, 491722, 767, 10, GOODS),
    _shchur("Coauthor", "cs", "CS", "ms_academic_cs.npz", 18333, 163788, 6805, 15, AUTHORS),
    _shchur("Coauthor", "physics", "Physics", "ms_academic_phy.npz", 34493, 495924, 8415, 5, AUTHORS),
)
WIKICS = node_record(
    "PyG-WikiCS",
    "WikiCS",
    {"is_undirected": True},
    title="WikiCS",
    split="20 official splits of the training, validation and early-stopping nodes; one test part",
    summary="articles on computer science and their links, taken both ways; 10 branches of the field",
    features=Features(node=300, classes=10),
    # The paper's 216,123 edges are links; both ways and without duplicates they are the number here.
    statistics=Statistics(1, 11701, 431726, directed=False, sizes=(580, 1769, 5847)),
    source=Source(
        citation="Mernyei and Cangea, Wiki-CS: A Wikipedia-Based Benchmark for Graph Neural Networks, GRL+ at ICML "
        "2020",
        licence="MIT",
        page="github.com/pmernyei/wiki-cs-dataset (folder dataset)",
    ),
    raw=RawFiles(
        "WikiCS",
        ("raw/data.json",),
        urls={"raw/data.json": "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset/data.json"},
    ),
)
# GraphGym's own files say "PyG" only.
RECORDS = (*PLANETOID, *(replace(record, format="PyG") for record in PLANETOID), *CITATION_FULL, *SHCHUR, WIKICS)
