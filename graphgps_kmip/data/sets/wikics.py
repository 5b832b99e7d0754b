"""WikiCS: articles on computer science, one graph, twenty official splits with one common test part."""

from __future__ import annotations

from graphgps_kmip.data.dataset_record import Features, RawFiles, Source, Statistics
from graphgps_kmip.data.transductive import node_record

RECORDS = (
    node_record(
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
            citation="Mernyei and Cangea, Wiki-CS: A Wikipedia-Based Benchmark for Graph Neural Networks, GRL+ at "
            "ICML 2020",
            licence="MIT",
            page="github.com/pmernyei/wiki-cs-dataset (folder dataset)",
        ),
        raw=RawFiles("WikiCS", ("raw/data.json",)),
    ),
)
