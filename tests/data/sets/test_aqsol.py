"""AQSOL: raw files in their published form, through torch_geometric's class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.datasets import AQSOL

from graphgps_kmip.data import DatasetInfo, GraphDataset, find
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_molecules import check_refused, pack, write

RECORD = find("PyG-AQSOL", "none")
FOREIGN = b"c__main__\nDictionary\n."  # the class of the published dictionaries is nowhere installed


def molecule(atoms: list[int], bonds: list[tuple[int, int]], solubility: float) -> tuple[Any, ...]:
    """Return a molecule as published: types of atoms, types of edges, edges in both directions, label."""
    edges = np.array([pair for one, two in bonds for pair in ((one, two), (two, one))], dtype=np.int64).reshape(-1, 2)
    kinds = np.repeat(np.arange(1, len(bonds) + 1), 2)
    return np.array(atoms), kinds, edges.T, np.float64(solubility)


KEPT = [molecule([64, number, 3], [(0, 1), (1, 2)], -number / 2) for number in range(4)]
WITHOUT_BONDS = molecule([1], [], 7)
LAST_ATOM_ALONE = molecule([1, 2, 3], [(0, 1)], 8)


def place(root: Path) -> Path:
    raw = root / "AQSOL" / "raw"
    write(raw / "train.pickle", [KEPT[0], WITHOUT_BONDS, KEPT[1]])
    write(raw / "val.pickle", [LAST_ATOM_ALONE, KEPT[2]])
    write(raw / "test.pickle", [KEPT[3]])
    for name in ("atom_dict", "bond_dict"):
        (raw / f"{name}.pickle").write_bytes(FOREIGN)
    return raw


def check(dataset: GraphDataset) -> None:
    assert [part.tolist() for part in dataset.splits] == [[0, 1], [2], [3]]
    for number, graph in enumerate(dataset.graphs):
        assert graph.x.tolist() == [[64], [number], [3]]
        assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert graph.edge_attr.tolist() == [1, 1, 2, 2]
        assert graph.y.tolist() == [-number / 2]


def test_the_raw_files_become_the_molecules_that_the_publication_kept(tmp_path: Path) -> None:
    place(tmp_path)
    dataset = opened(RECORD, tmp_path)
    check(dataset)
    info = DatasetInfo.of(dataset, RECORD)
    assert (info.dim_in, info.dim_edge, info.dim_out, info.sizes) == (1, 1, 1, (2, 1, 1))


def test_the_archive_as_downloaded_will_do(tmp_path: Path) -> None:
    names = [Path(file).name for file in RECORD.raw.files]
    archive = RECORD.raw.archives[0]
    assert f"/{archive}?" in AQSOL.url
    pack(place(tmp_path), tmp_path / "AQSOL" / archive, "asqol_graph_raw", names)  # spelt like this
    check(opened(RECORD, tmp_path))


def test_a_raw_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    place(tmp_path)
    check_refused(RECORD, tmp_path, "test.pickle", [(*KEPT[0][:3], Code(tmp_path / "it-ran"))])
