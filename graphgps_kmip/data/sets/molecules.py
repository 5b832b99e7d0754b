"""ZINC and AQSOL: molecules with their penalised logP, and with their solubility in water.

ZINC has all molecules ("full") or the 12,000 of the benchmark ("subset"). Both read the same raw files and have
folders of their own for what is made of them, side by side.
"""

from __future__ import annotations

from functools import partial

from torch_geometric.data import Data

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics

CITATION = "Dwivedi, Joshi, Luu, Laurent, Bengio and Bresson, Benchmarking Graph Neural Networks, JMLR 2023"
PAGE = "github.com/graphdeeplearning/benchmarking-gnns (folder data/molecules)"
PICKLES, INDICES = (tuple(f"{split}.{ending}" for split in SPLITS) for ending in ("pickle", "index"))
INDEX_URL = "https://raw.githubusercontent.com/graphdeeplearning/benchmarking-gnns/master/data/molecules"


def load_zinc(home: str, subset: bool) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import ZINC

    return joined([ZINC(home, subset, split) for split in SPLITS])


def load_aqsol(home: str) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import AQSOL

    parts = [AQSOL(home, split, pre_filter=_last_atom_is_bonded) for split in SPLITS]
    for part in parts:
        part._data.x = part._data.x.view(-1, 1)  # all graphs of the part, one after the other
    return joined(parts)


def _last_atom_is_bonded(graph: Data) -> bool:
    """Return whether the publication kept a molecule: its graphs ended with the last atom that has a bond.

    The class itself keeps some ten molecules more than the 9,823 of the publication.
    """
    return graph.num_edges > 0 and int(graph.edge_index.max()) == graph.num_nodes - 1


def _zinc(name: str, title: str, split: str, sizes: tuple[int, int, int]) -> DatasetRecord:
    return DatasetRecord(
        format="PyG-ZINC",
        name=name,
        title=title,
        load=partial(load_zinc, subset=name == "subset"),
        task_type="regression",
        metric="mae",
        loss="l1",
        split=split,
        summary=f"{sum(sizes):,} molecules with their penalised logP (solubility, ease of synthesis, long cycles)",
        features=Features(node=(28,), edge=(4,)),
        statistics=Statistics(sum(sizes), 23.2, 24.9, edges_once=True, directed=False, sizes=sizes),
        source=Source(CITATION, "MIT", PAGE),
        raw=RawFiles(
            "ZINC",
            tuple(f"raw/{file}" for file in PICKLES + INDICES),
            archives=("molecules.zip", *INDICES),
            processed=f"{name}/processed",
            urls={
                "molecules.zip": "https://www.dropbox.com/s/feo9qle74kg48gy/molecules.zip?dl=1",
                **{f"raw/{file}": f"{INDEX_URL}/{file}" for file in INDICES},
            },
        ),
    )


AQSOL_RECORD = DatasetRecord(
    format="PyG-AQSOL",
    title="AQSOL",
    load=load_aqsol,
    task_type="regression",
    metric="mae",
    loss="l1",
    split="official: 80 / 10 / 10 % by scaffolds, the most frequent in training",
    summary="9,823 molecules with the logarithm of their solubility in water",
    features=Features(node=(65,), edge=(5,)),
    statistics=Statistics(9823, 17.6, 35.8, directed=False, sizes=(7831, 996, 996)),
    source=Source(f"Sorkun, Khetan and Er, AqSolDB, Scientific Data 2019; {CITATION}", "MIT", PAGE),
    raw=RawFiles(
        "AQSOL",
        tuple(f"raw/{name}.pickle" for name in (*SPLITS, "atom_dict", "bond_dict")),
        archives=("aqsol_graph_raw.zip",),
        unread=("raw/atom_dict.pickle", "raw/bond_dict.pickle"),  # objects of a class of the publication's code
        urls={"aqsol_graph_raw.zip": "https://www.dropbox.com/s/lzu9lmukwov12kt/aqsol_graph_raw.zip?dl=1"},
    ),
)
RECORDS = (
    _zinc("subset", "ZINC", "official: 10,000 / 1,000 / 1,000 of the molecules of ZINC-full", (10000, 1000, 1000)),
    _zinc("full", "ZINC-full", "official: 220,011 / 24,445 / 5,000 molecules", (220011, 24445, 5000)),
    AQSOL_RECORD,
)
