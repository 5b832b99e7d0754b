"""PCQM4Mv2: 3.7 million molecules and their HOMO-LUMO gaps, kept in a database on disk."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from tqdm import tqdm

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.file_errors import reading
from graphgps_kmip.data.ogb_tables import HOME
from graphgps_kmip.data.point_clouds import Row, RowFile
from graphgps_kmip.data.safe_pickle import load_torch
from graphgps_kmip.encoding.feature_encoders import ATOM, BOND
from graphgps_kmip.errors import DataError, InputError

BASE = "pcqm4m-v2"
RAW = RawFiles(
    HOME,
    ("raw/data.csv.gz", "split_dict.pt"),
    base=BASE,
    archives=(f"{BASE}.zip",),
    inside=BASE,
    urls={f"{BASE}.zip": f"https://dgl-data.s3-accelerate.amazonaws.com/dataset/OGB-LSC/{BASE}.zip"},
)
SPLIT_SEED = 42
VALIDATION, SUBSET_VALIDATION = 150_000, 50_000  # molecules, as in GraphGPS
SCHEMA = {
    "x": {"dtype": torch.uint8, "size": (-1, len(ATOM))},
    "edge_index": {"dtype": torch.int16, "size": (2, -1)},
    "edge_attr": {"dtype": torch.uint8, "size": (-1, len(BOND))},
    "y": {"dtype": torch.float32, "size": (1,)},
}


def molecule(smiles: str) -> dict[str, np.ndarray]:
    """Return ``x`` (N, 9), ``edge_index`` (2, E) and ``edge_attr`` (E, 3) of a molecule, int64.

    Each bond is there in both directions, one after the other.

    Raises:
        DataError: RDKit is not installed.
        InputError: the text is no molecule.
    """
    try:
        from ogb.utils.mol import smiles2graph  # here: ogb asks the network for newer releases of itself
    except ImportError as error:
        raise DataError(
            "its molecules come as text, and RDKit, which makes graphs of them, is not installed: pip install rdkit"
        ) from error
    try:
        graph = smiles2graph(smiles)
    except (AttributeError, TypeError) as error:  # RDKit made no molecule of it
        raise InputError(f"{str(smiles)[:40]!r} is no molecule") from error
    return {"x": graph["node_feat"], "edge_index": graph["edge_index"], "edge_attr": graph["edge_feat"]}


class Molecules:
    """Molecules read from disk when they are asked for: those of the rows with these numbers, in this order."""

    def __init__(self, rows: RowFile, numbers: np.ndarray) -> None:
        self.rows, self.numbers = rows, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Data:
        """Return one molecule; ``y`` (1,) is NaN where the gap is not published."""
        row = self.rows[int(self.numbers[index])]
        return Data(**{key: row[key].long() for key in ("x", "edge_index", "edge_attr")}, y=row["y"].clone())


def load(home: str, name: str) -> GraphDataset:
    """Return the molecules of "subset", "full" or "inference" with their splits."""
    folder = Path(home, BASE)
    rows = RowFile(folder / "processed" / "molecules.db", SCHEMA)
    if not Path(rows.path).exists():
        Path(rows.path).parent.mkdir(exist_ok=True)
        rows.write(_rows(folder / "raw" / "data.csv.gz"))
    with reading(folder / "split_dict.pt"):
        official = load_torch(folder / "split_dict.pt")
    parts = [np.sort(part) for part in _splits({part: np.asarray(index) for part, index in official.items()}, name)]
    ends = np.cumsum([len(part) for part in parts])
    splits = [torch.arange(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    return GraphDataset(Molecules(rows, np.concatenate(parts)), splits)


def _splits(official: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    if name == "inference":
        return [official["valid"], official["test-dev"], official["test-challenge"]]
    order = np.random.default_rng(SPLIT_SEED).permutation(official["train"])
    validation, training = order[:VALIDATION], order[VALIDATION:]
    if name == "subset":
        validation, training = validation[:SUBSET_VALIDATION], training[: len(training) // 10]
    return [training, validation, official["valid"]]


def _rows(path: Path) -> Iterator[Row]:
    import pandas as pd

    with reading(path):
        table = pd.read_csv(path)
        gaps = zip(table["smiles"], table["homolumogap"], strict=True)
    for smiles, gap in tqdm(gaps, "PCQM4Mv2: molecules", total=len(table)):
        with reading(path):
            graph = molecule(smiles)
        yield {key: torch.as_tensor(graph.get(key, [gap])).to(SCHEMA[key]["dtype"]) for key in SCHEMA}


def _record(name: str, sizes: tuple[int, int, int], split: str, summary: str) -> DatasetRecord:
    return DatasetRecord(
        format="OGB",
        name=f"PCQM4Mv2-{name}",
        title=f"PCQM4Mv2-{name}",
        load=partial(load, name=name),
        task_type="regression",
        metric="mae",
        loss="l1",
        split=split,
        summary=summary,
        features=Features(ATOM, BOND),
        statistics=Statistics(sum(sizes), 14.1, 14.6, edges_once=True, directed=False, sizes=sizes),
        source=Source(
            citation="Hu et al., OGB-LSC: A Large-Scale Challenge for Machine Learning on Graphs, NeurIPS 2021",
            licence="CC BY 4.0",
            page="ogb.stanford.edu/docs/lsc/pcqm4mv2",
        ),
        raw=RAW,
        unknown_targets=name == "inference",
    )


_HELD_OUT = "test is the official validation set, validation {} random molecules of the official training set"
RECORDS = (
    _record(
        "full",
        (3228606, 150000, 73545),
        _HELD_OUT.format("150,000"),
        "3.4 million molecules: the HOMO-LUMO gap in electronvolts",
    ),
    _record(
        "subset",
        (322860, 50000, 73545),
        _HELD_OUT.format("50,000") + ", training a tenth of the rest",
        "a tenth of the training molecules of PCQM4Mv2-full, and a third of those that validate",
    ),
    _record(
        "inference",
        (73545, 147037, 147432),
        "the official validation set, test-dev and test-challenge; the gaps of the latter two are not published (NaN)",
        "molecules to predict for the OGB-LSC challenge",
    ),
)
