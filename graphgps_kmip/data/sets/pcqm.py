"""PCQM4Mv2: 3.7 million molecules and their HOMO-LUMO gaps, kept in a database on disk."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import torch
from torch_geometric.data import Data, download_url, extract_zip
from tqdm import tqdm

from graphgps_kmip.data.dataset import GraphDataset
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics
from graphgps_kmip.data.ogb_loading import HOME, import_ogb
from graphgps_kmip.data.row_store import Row, RowFile
from graphgps_kmip.encoding.molecule import ATOM, BOND
from graphgps_kmip.errors import DataError, InputError

if TYPE_CHECKING:
    from torch_geometric.datasets import PCQM4Mv2

BASE = "pcqm4m-v2"
RAW = RawFiles(HOME, ("raw/data.csv.gz", "split_dict.pt"), base=BASE, archives=(f"{BASE}.zip",))
SPLIT_SEED = 42
VALIDATION, SUBSET_VALIDATION = 150_000, 50_000  # molecules, as in GraphGPS
SCHEMA = {
    "x": {"dtype": torch.uint8, "size": (-1, len(ATOM))},
    "edge_index": {"dtype": torch.int16, "size": (2, -1)},
    "edge_attr": {"dtype": torch.uint8, "size": (-1, len(BOND))},
    "y": {"dtype": torch.float32, "size": (1,)},
}


class Molecules:
    """Molecules read from disk when they are asked for.

    Args:
        rows: all of them.
        numbers: those of the rows that are meant, in this order.
    """

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
    rows = _row_file(_open(home))
    official = torch.load(Path(home, BASE, "split_dict.pt"), weights_only=True)
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


def _open(home: str) -> PCQM4Mv2:
    """Return torch_geometric's data set, reading ogb's own layout of the files, and writing bytes for its numbers."""
    from torch_geometric.datasets import PCQM4Mv2

    changed = {"raw_file_names": [f"../{name}" for name in RAW.files], "download": _download, "process": _store}
    with patch.multiple(PCQM4Mv2, **changed):
        return PCQM4Mv2(str(Path(home, BASE)))


def _row_file(dataset: PCQM4Mv2) -> RowFile:
    return RowFile(Path(dataset.processed_dir, "molecules.db"), SCHEMA)


def _store(dataset: PCQM4Mv2) -> None:
    import pandas as pd

    table = pd.read_csv(dataset.raw_paths[0])
    molecules = tqdm(zip(table["smiles"], table["homolumogap"], strict=True), "PCQM4Mv2: molecules", total=len(table))
    _row_file(dataset).write(_row(smiles, gap) for smiles, gap in molecules)


def _row(smiles: str, gap: float) -> Row:
    graph = {**_molecule(smiles), "y": np.array([gap])}
    return {key: torch.from_numpy(graph[key]).to(SCHEMA[key]["dtype"]) for key in SCHEMA}


def _download(dataset: PCQM4Mv2) -> None:
    folder = Path(dataset.root)
    unpacked = folder.parent / "unpacked"
    archive = Path(download_url(dataset.url, str(folder)))
    extract_zip(str(archive), str(unpacked))
    for name in RAW.files:
        if not (unpacked / BASE / name).exists():
            raise InputError(f"there is no {BASE}/{name} in it")
        if not (folder / name).exists():  # files at hand stay as they are
            os.replace(unpacked / BASE / name, folder / name)
    archive.unlink()
    shutil.rmtree(unpacked)


def _molecule(smiles: str) -> dict[str, np.ndarray]:
    """Return the graph of a molecule with the categories of ogb, whose vocabularies encoders know."""
    try:
        graph = import_ogb("ogb.utils.mol").smiles2graph(smiles)
    except ImportError as error:
        raise DataError(
            "PCQM4Mv2: its molecules come as text, and RDKit, which makes graphs of them, is not installed: "
            "pip install rdkit"
        ) from error
    return {"x": graph["node_feat"], "edge_index": graph["edge_index"], "edge_attr": graph["edge_feat"]}


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
