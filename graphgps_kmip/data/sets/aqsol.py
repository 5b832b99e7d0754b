"""AQSOL: molecules with their measured solubility in water."""

from __future__ import annotations

from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics


def load(home: str) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import AQSOL

    parts = [AQSOL(home, split, pre_filter=_last_atom_is_bonded) for split in SPLITS]
    for part in parts:
        part._data.x = part._data.x.view(-1, 1)  # all graphs of the part, one after the other
    return joined(parts)


def _last_atom_is_bonded(graph: Data) -> bool:
    """Tell whether the publication kept a molecule: its graphs ended with the last atom that has a bond.

    The class itself keeps some ten molecules more than the 9,823 of the publication.
    """
    return graph.num_edges > 0 and int(graph.edge_index.max()) == graph.num_nodes - 1


RECORDS = (
    DatasetRecord(
        format="PyG-AQSOL",
        title="AQSOL",
        load=load,
        task_type="regression",
        metric="mae",
        loss="l1",
        split="official: 80 / 10 / 10 % by scaffolds, the most frequent in training",
        summary="9,823 molecules with the logarithm of their solubility in water",
        features=Features(node=(65,), edge=(5,)),
        statistics=Statistics(9823, 17.6, 35.8, directed=False, sizes=(7831, 996, 996)),
        source=Source(
            citation="Sorkun, Khetan and Er, AqSolDB, Scientific Data 2019; Dwivedi, Joshi, Luu, Laurent, Bengio and "
            "Bresson, Benchmarking Graph Neural Networks, JMLR 2023",
            licence="MIT",
            page="github.com/graphdeeplearning/benchmarking-gnns (folder data/molecules)",
        ),
        raw=RawFiles(
            "AQSOL",
            tuple(f"raw/{name}.pickle" for name in (*SPLITS, "atom_dict", "bond_dict")),
            archives=("aqsol_graph_raw.zip",),
        ),
    ),
)
