"""ZINC: molecules with their penalised logP, all of them ("full") or the 12,000 of the benchmark ("subset").

Both read the same raw files and have folders of their own for what is made of them, so they can lie side by side.
"""

from __future__ import annotations

import shutil
import zipfile
from functools import partial
from pathlib import Path

from graphgps_kmip.data.dataset import SPLITS, GraphDataset, joined
from graphgps_kmip.data.dataset_record import DatasetRecord, Features, RawFiles, Source, Statistics

ARCHIVE = "molecules.zip"
PICKLES, INDICES = (tuple(f"{split}.{ending}" for split in SPLITS) for ending in ("pickle", "index"))


def load(home: str, subset: bool) -> GraphDataset:
    """Return the three official parts; ``x`` (N, 1) and ``edge_attr`` (E,) are types of atoms and bonds."""
    from torch_geometric.datasets import ZINC

    _unpack(Path(home))
    return joined([ZINC(home, subset, split) for split in SPLITS])


def _unpack(home: Path) -> None:
    """Unpack an archive at hand: the class would also delete the files of indices, and download them again."""
    names = [name for name in PICKLES if not (home / "raw" / name).exists()]
    if names and (home / ARCHIVE).exists():
        with zipfile.ZipFile(home / ARCHIVE) as archive:
            for name in names:
                with archive.open(f"molecules/{name}") as packed, open(home / "raw" / name, "wb") as file:
                    shutil.copyfileobj(packed, file)


def _record(name: str, title: str, split: str, sizes: tuple[int, int, int]) -> DatasetRecord:
    return DatasetRecord(
        format="PyG-ZINC",
        name=name,
        title=title,
        load=partial(load, subset=name == "subset"),
        task_type="regression",
        metric="mae",
        loss="l1",
        split=split,
        summary=f"{sum(sizes):,} molecules with their penalised logP (solubility, ease of synthesis, long cycles)",
        features=Features(node=(28,), edge=(4,)),
        statistics=Statistics(sum(sizes), 23.2, 24.9, edges_once=True, directed=False, sizes=sizes),
        source=Source(
            citation="Dwivedi, Joshi, Luu, Laurent, Bengio and Bresson, Benchmarking Graph Neural Networks, JMLR 2023",
            licence="MIT",
            page="github.com/graphdeeplearning/benchmarking-gnns (folder data/molecules)",
        ),
        raw=RawFiles(
            "ZINC",
            tuple(f"raw/{file}" for file in PICKLES + INDICES),
            archives=(ARCHIVE, *INDICES),
            processed=f"{name}/processed",
        ),
    )


RECORDS = (
    _record("subset", "ZINC", "official: 10,000 / 1,000 / 1,000 of the molecules of ZINC-full", (10000, 1000, 1000)),
    _record("full", "ZINC-full", "official: 220,011 / 24,445 / 5,000 molecules", (220011, 24445, 5000)),
)
