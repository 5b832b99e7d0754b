"""PCQM4Mv2: raw files in their published form, through torch_geometric's class on disk."""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from unittest.mock import patch
from urllib.response import addinfourl

import numpy as np
import pytest

from graphgps_kmip.data import DataError, DatasetInfo, GraphDataset, open_dataset, raw_files
from graphgps_kmip.data.sets import ogb
from graphgps_kmip.data.sets.ogb import PCQM
from tests.data.sets.raw_files import opened, pack
from tests.data.sets.raw_graphs import OFFICIAL, place

FULL, SUBSET, INFERENCE = PCQM
NO_RDKIT = "RDKit, which makes graphs of molecules, is not installed"


@pytest.fixture
def chemistry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the raw files of 24 molecules, of which 6, not 150,000, validate; return the folder of all data sets."""
    monkeypatch.setattr(ogb, "VALIDATION", 6)
    monkeypatch.setattr(ogb, "SUBSET_VALIDATION", 2)
    place(FULL, tmp_path)
    return tmp_path


@pytest.fixture
def root(chemistry: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of ``chemistry``, where no RDKit is asked for: each molecule is a path of its letters."""
    monkeypatch.setattr(ogb, "molecule", path_of_letters)
    return chemistry


def path_of_letters(smiles: str) -> dict[str, np.ndarray]:
    atoms = np.arange(len(smiles))
    bonds = np.stack([atoms[:-1], atoms[1:]])
    return {
        "x": (atoms % 2)[:, None].repeat(9, axis=1),
        "edge_index": np.concatenate([bonds, bonds[::-1]], axis=1),
        "edge_attr": np.ones((2 * bonds.shape[1], 3), dtype=np.int64),
    }


def labels(dataset: GraphDataset) -> list[list[float]]:
    return [[float(dataset[index].y) for index in part.tolist()] for part in dataset.splits]


def test_full_takes_validation_from_training_and_the_official_validation_as_test(root: Path) -> None:
    train, val, test = labels(opened(FULL, root))
    assert (len(train), len(val), test) == (12, 6, [9.0, 9.5])
    assert sorted(train + val) == [number / 2 for number in range(18)]
    chosen = np.random.default_rng(42).permutation(18)[:6]  # as GraphGPS draws them
    assert sorted(val) == sorted(chosen / 2)
    assert labels(opened(FULL, root)) == [train, val, test]


def test_subset_is_a_tenth_of_the_training_molecules(root: Path) -> None:
    full, subset = labels(opened(FULL, root)), labels(opened(SUBSET, root))
    assert [len(part) for part in subset] == [1, 2, 2]
    assert set(subset[0]) < set(full[0])
    assert set(subset[1]) < set(full[1])
    assert subset[2] == full[2]


def test_the_gaps_of_the_challenge_are_unknown(root: Path) -> None:
    valid, dev, challenge = labels(opened(INFERENCE, root))
    assert valid == [9.0, 9.5]
    assert all(map(math.isnan, [*dev, *challenge]))


def test_atoms_and_bonds_have_the_categories_of_ogb(chemistry: Path) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    dataset = opened(INFERENCE, chemistry)
    graph = dataset[2]  # the first of test-dev: ethene
    carbon = [5, 0, 3, 5, 2, 0, 1, 0, 0]  # element 6, no chirality, 3 neighbours with hydrogens, no charge, 2 H, sp2
    assert graph.x.tolist() == [carbon, carbon]
    assert graph.edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_attr.tolist() == [[1, 0, 0]] * 2  # a double bond
    assert opened(FULL, chemistry)[0].edge_index.shape == (2, 0)  # methane


def test_the_facts_are_those_of_the_record(root: Path) -> None:
    info = DatasetInfo.of(opened(FULL, root), FULL)
    assert (info.dim_in, info.dim_edge, info.dim_out, info.sizes) == (9, 3, 1, (12, 6, 2))


def test_what_was_fetched_is_unpacked_and_its_archive_not_kept(root: Path) -> None:
    folder = root / FULL.raw.folder
    pack(folder, root / "pcqm4m-v2.zip", "pcqm4m-v2")
    with (
        open(root / "pcqm4m-v2.zip", "rb") as file,
        patch.object(raw_files, "urlopen", return_value=addinfourl(file, {}, "")),
    ):
        assert len(open_dataset(FULL, root)) == 20
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    assert names == {"processed", "raw", "split_dict.pt"}


def test_text_that_is_no_molecule_is_damage_to_the_file(chemistry: Path) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    folder = chemistry / FULL.raw.folder
    (folder / "raw" / "data.csv.gz").write_bytes(gzip.compress(b"idx,smiles,homolumogap\n0,C1C,1.0\n"))
    with pytest.raises(DataError, match=r"data\.csv\.gz cannot be used"):
        opened(FULL, chemistry)


def test_without_rdkit_one_line_says_how_to_install_it(chemistry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rdkit", "rdkit.Chem", "ogb.utils.mol"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match="RDKit.*is not installed: pip install rdkit"):
        opened(FULL, chemistry)


def test_the_parts_have_the_published_sizes() -> None:
    ends = np.cumsum([3378606, 73545, 147037, 147432])
    official = dict(zip(OFFICIAL, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    for record in PCQM:
        parts = ogb._pcqm_splits(official, record.name.removeprefix("PCQM4Mv2-"))
        assert tuple(map(len, parts)) == record.statistics.sizes
