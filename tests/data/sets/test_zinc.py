"""ZINC: raw files in their published form, through torch_geometric's class, subset and full side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.datasets import ZINC

from graphgps_kmip.data import DatasetInfo, DatasetRecord, find
from graphgps_kmip.data.sets.molecules import INDICES, PICKLES
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_molecules import check_refused, pack, write

SUBSET, FULL = find("PyG-ZINC", "subset"), find("PyG-ZINC", "full")
MOLECULES = {"train": (0, 1, 2, 3), "val": (4, 5), "test": (6, 7)}
CHOSEN = {"train": "3,1\n", "val": "1\n", "test": "0\n"}  # positions within the part
IN_SUBSET = [3, 1, 5, 6]


def molecule(number: int) -> dict[str, Any]:
    """Return a chain of three atoms whose types and value come from its number."""
    bonds = torch.zeros(3, 3, dtype=torch.int8)
    bonds[0, 1] = bonds[1, 0] = 1 + number % 3
    bonds[1, 2] = bonds[2, 1] = 1
    atoms = torch.tensor([number, 27, 0], dtype=torch.int8)
    return {
        "num_atom": 3,
        "atom_type": atoms,
        "bond_type": bonds,
        "logP_SA_cycle_normalized": torch.tensor([number / 4]),
    }


def place(root: Path) -> Path:
    raw = root / "ZINC" / "raw"
    for split, numbers in MOLECULES.items():
        write(raw / f"{split}.pickle", [molecule(number) for number in numbers])
        write(raw / f"{split}.index", CHOSEN[split])
    return raw


def numbers(record: DatasetRecord, root: Path) -> list[float]:
    return [float(graph.y) * 4 for graph in opened(record, root).graphs]


def test_the_subset_holds_the_molecules_of_the_index_files(tmp_path: Path) -> None:
    place(tmp_path)
    dataset = opened(SUBSET, tmp_path)
    assert [part.tolist() for part in dataset.splits] == [[0, 1], [2], [3]]
    for graph, number in zip(dataset.graphs, IN_SUBSET, strict=True):
        assert graph.x.tolist() == [[number], [27], [0]]
        assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
        assert graph.edge_attr.tolist() == [1 + number % 3, 1 + number % 3, 1, 1]
        assert graph.y.tolist() == [number / 4]
    info = DatasetInfo.of(dataset, SUBSET)
    assert (info.dim_in, info.dim_edge, info.dim_out, info.sizes) == (1, 1, 1, (2, 1, 1))


def test_the_full_set_holds_every_molecule(tmp_path: Path) -> None:
    place(tmp_path)
    assert numbers(FULL, tmp_path) == list(range(8))
    assert [len(part) for part in opened(FULL, tmp_path).splits] == [4, 2, 2]


def test_subset_and_full_lie_side_by_side_and_are_each_made_once(tmp_path: Path) -> None:
    place(tmp_path)
    made = [tmp_path / "ZINC" / name / "processed" / "train.pt" for name in ("subset", "full")]
    assert (numbers(SUBSET, tmp_path), numbers(FULL, tmp_path)) == (IN_SUBSET, list(range(8)))
    times = [path.stat().st_mtime_ns for path in made]
    assert (numbers(SUBSET, tmp_path), numbers(FULL, tmp_path)) == (IN_SUBSET, list(range(8)))
    assert [path.stat().st_mtime_ns for path in made] == times


@pytest.mark.parametrize("place_of_indices", [".", "raw"])
def test_the_archive_as_downloaded_and_the_index_files_will_do(place_of_indices: str, tmp_path: Path) -> None:
    raw = place(tmp_path)
    pack(raw, tmp_path / "ZINC" / "molecules.zip", "molecules", PICKLES)
    assert f"/{SUBSET.raw.archives[0]}?" in ZINC.url
    for name in INDICES:
        (raw / name).rename(tmp_path / "ZINC" / place_of_indices / name)
    assert numbers(SUBSET, tmp_path) == IN_SUBSET
    assert numbers(FULL, tmp_path) == list(range(8))


def test_an_archive_that_holds_the_index_files_too_will_do(tmp_path: Path) -> None:
    pack(place(tmp_path), tmp_path / "ZINC" / "molecules.zip", "molecules", (*PICKLES, *INDICES))
    assert numbers(SUBSET, tmp_path) == IN_SUBSET


def test_hand_placed_files_are_not_replaced_by_those_of_an_archive(tmp_path: Path) -> None:
    raw = place(tmp_path)
    pack(raw, tmp_path / "ZINC" / "molecules.zip", "molecules", PICKLES)
    place(tmp_path)
    write(raw / "val.pickle", [molecule(9), molecule(9)])
    mine = (raw / "val.pickle").read_bytes()
    assert numbers(SUBSET, tmp_path) == [3, 1, 9, 6]
    assert (raw / "val.pickle").read_bytes() == mine


@pytest.mark.parametrize("record", [SUBSET, FULL], ids=lambda record: record.title)
def test_a_raw_file_that_would_run_code_is_refused(record: DatasetRecord, tmp_path: Path) -> None:
    place(tmp_path)
    check_refused(record, tmp_path, "val.pickle", [{**molecule(1), "num_atom": Code(tmp_path / "it-ran")}])
