"""TUDataset: sets of small graphs as text files, molecules and proteins with labelled atoms, and ego networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch_geometric.data import Data

from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics


def load(home: str, name: str, labelled: bool) -> Sequence[Data]:
    """Return the graphs; ``x`` is the node's label as one-hot, or a column of ones where nodes carry no label."""
    from torch_geometric.datasets import TUDataset
    from torch_geometric.transforms import Constant

    return TUDataset(home, name, transform=None if labelled else Constant())


def _record(
    name: str, graphs: int, nodes: float, edges: float, labels: int, classes: int, summary: str, citation: str
) -> DatasetRecord:
    parts = ("A", "graph_indicator", "graph_labels", *(["node_labels"] if labels else []))
    return DatasetRecord(
        format="PyG-TUDataset",
        name=name,
        title=name,
        load=partial(load, name=name, labelled=labels > 0),
        task_type="classification",
        fractions=(0.8, 0.1, 0.1),
        metric="accuracy",
        loss="cross_entropy",
        split="none official: 80/10/10 at random; publications use dataset.split_mode cv-stratifiedkfold-10",
        summary=summary,
        features=Features(node=labels or 1, classes=classes),
        statistics=Statistics(graphs, nodes, edges, edges_once=True, directed=False),
        source=Source(
            citation=f"{citation}; collected by Morris et al., TUDataset, ICML 2020 workshop GRL+",
            licence="not stated",
            page="chrsmrrs.github.io/datasets",
        ),
        raw=RawFiles(
            "TUDataset",
            tuple(f"raw/{name}_{part}.txt" for part in parts),
            base=name,
            urls={f"{name}.zip": f"https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"},
        ),
    )


COMPOUNDS = "Wale, Watson and Karypis, Comparison of Descriptor Spaces for Chemical Compound Retrieval, KAIS 2008"
CIRCLES = "Yanardag and Vishwanathan, Deep Graph Kernels, KDD 2015"
ENZYMES = "Borgwardt et al., Protein Function Prediction via Graph Kernels, ISMB 2005"
FOLDS = "Dobson and Doig, Distinguishing Enzyme Structures from Non-enzymes without Alignments, JMB 2003"
# Name, graphs, mean nodes, mean edges (each once), node labels, classes: as on the page of the collection. COLLAB's
# edges are half of the 4,914.4 that the loading class counts: it drops repeated ones, with which the page has 2,457.78.
ROWS = (
    ("NCI1", 4110, 29.87, 32.30, 37, 2, "4,110 compounds; does one slow the growth of lung cancer cells", COMPOUNDS),
    ("COLLAB", 5000, 74.49, 2457.2, 0, 3, "5,000 circles of co-authors; which field of physics", CIRCLES),
    ("IMDB-BINARY", 1000, 19.77, 96.53, 0, 2, "1,000 circles of actors; action or romance", CIRCLES),
    ("IMDB-MULTI", 1500, 13.00, 65.94, 0, 3, "1,500 circles of actors; comedy, romance or science fiction", CIRCLES),
    ("ENZYMES", 600, 32.63, 62.14, 3, 6, "600 enzymes; which of six kinds of reaction", ENZYMES),
    ("PROTEINS", 1113, 39.06, 72.82, 3, 2, "1,113 proteins; enzyme or not", FOLDS),
    ("DD", 1178, 284.32, 715.66, 89, 2, "1,178 proteins with amino acids as nodes; enzyme or not", FOLDS),
)
RECORDS = tuple(_record(*row) for row in ROWS)
