"""ogbg-molhiv rebuilt from SMILES: the tables, the split and the mark that the command writes, and what loads them."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from graphgps_kmip.data import DataError, DatasetInfo, find_title
from graphgps_kmip.data.sets import rebuilt_molhiv
from graphgps_kmip.data.sets.rebuilt_molhiv import PUBLISHED, RECORDS, rebuild
from run import rebuild_molhiv
from tests.data.sets.raw_files import opened

(REBUILT,) = RECORDS
NO_RDKIT = "RDKit, which makes graphs of molecules, is not installed"
ALUMINIUM = "O=C1O[Al]23(OC1=O)(OC(=O)C(=O)O2)OC(=O)C(=O)O3"
# Five molecules without rings, two with benzene, and three that are alone with their ring systems.
SMILES = ["C", "CC", "C#N", "C=C", "OCC", "c1ccccc1", "Cc1ccccc1", "C1CC1", ALUMINIUM, "C1CCC1"]
ACTIVE = [0, 1, 0, 0, 1, 0, 1, 0, 1, 0]


def write(path: Path, rows: list[str], header: str = "smiles,HIV_active") -> Path:
    text = "\n".join([header, *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "hiv.csv.gz", [f"{text},{label}" for text, label in zip(SMILES, ACTIVE, strict=True)])


@pytest.fixture
def chemistry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for RDKit, so that the files are tested where it is not: a molecule is a path of its letters."""

    def tables(texts: list[str]) -> tuple[dict[str, np.ndarray], list[str], list[int]]:
        sizes = np.array([len(text) for text in texts])
        places = np.concatenate([np.arange(size) for size in sizes])
        edges = np.concatenate([np.stack([np.arange(size - 1), np.arange(1, size)], 1) for size in sizes])
        made = {
            "edge": edges,
            "num-node-list": sizes[:, None],
            "num-edge-list": sizes[:, None] - 1,
            "node-feat": np.repeat(places[:, None] % 2, 9, 1),
            "edge-feat": np.ones((len(edges), 3), np.int64),
        }
        return made, [text.strip("C") for text in texts], []

    package = type(sys)("rdkit")
    package.__version__ = "none"
    monkeypatch.setitem(sys.modules, "rdkit", package)
    monkeypatch.setattr(rebuilt_molhiv, "molecule_tables", tables)


def test_rebuilt_molecules_are_those_of_ogb_with_their_labels_in_their_places(tmp_path: Path, source: Path) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    from ogb.utils.mol import smiles2graph

    mark = rebuild(source, tmp_path)
    dataset = opened(REBUILT, tmp_path)
    assert [int(graph.y) for graph in dataset.graphs] == ACTIVE
    for number, (text, graph) in enumerate(zip(SMILES, dataset.graphs, strict=True)):
        if text == ALUMINIUM:
            assert (graph.num_nodes, graph.num_edges) == (19, 42)
            continue
        theirs = smiles2graph(text)
        for key, name in (("x", "node_feat"), ("edge_index", "edge_index"), ("edge_attr", "edge_feat")):
            assert graph[key].tolist() == theirs[name].tolist(), (number, key)
    assert [part.tolist() for part in dataset.splits] == [[0, 1, 2, 3, 4, 5, 6, 9], [8], [7]]
    assert mark["irregular_valences"] == {8: ALUMINIUM}
    assert mark["active"] == {"train": 3, "val": 1, "test": 0}


@pytest.mark.usefixtures("chemistry")
def test_the_files_are_ogbs_and_a_mark_says_what_they_were_made_from(tmp_path: Path, source: Path) -> None:
    assert rebuild_molhiv.main([str(source), "--dir", str(tmp_path)]) == 0
    folder = tmp_path / "ogb" / "ogbg_molhiv_rebuilt"
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*PUBLISHED.raw.files, "rebuilt.json"}
    mark = json.loads((folder / "rebuilt.json").read_text())
    assert (mark["rebuilt"], mark["from"], mark["graphs"]) == (True, "hiv.csv.gz", 10)
    dataset = opened(REBUILT, tmp_path)
    torch.testing.assert_close(torch.cat([graph.y for graph in dataset.graphs]), torch.tensor(ACTIVE))
    assert [graph.num_nodes for graph in dataset.graphs] == [len(text) for text in SMILES]
    info = DatasetInfo.of(dataset, REBUILT)
    assert (info.dim_in, info.dim_edge, info.dim_out) == (9, 3, 2)


@pytest.mark.usefixtures("chemistry")
def test_the_same_molecules_give_the_same_files(tmp_path: Path, source: Path) -> None:
    for name in ("a", "b"):
        rebuild(source, tmp_path / name)
    first, second = (sorted((tmp_path / name).rglob("*.*")) for name in ("a", "b"))
    assert [path.read_bytes() for path in first if path.is_file()] == [
        path.read_bytes() for path in second if path.is_file()
    ]


def test_its_name_says_that_it_is_rebuilt_and_it_is_apart_from_the_published_one(tmp_path: Path) -> None:
    assert find_title("ogbg-molhiv (rebuilt)") is REBUILT
    assert REBUILT.raw.folder != PUBLISHED.raw.folder
    with pytest.raises(DataError, match=r"raw files are missing.*run/rebuild_molhiv\.py makes them"):
        opened(REBUILT, tmp_path)


def test_nothing_of_the_published_one_is_downloaded_into_it() -> None:
    assert not REBUILT.raw.urls
    assert not REBUILT.raw.archives


@pytest.mark.usefixtures("chemistry")
def test_tables_at_hand_are_not_written_over(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(source), "--dir", str(tmp_path)]
    assert rebuild_molhiv.main(words) == 0
    assert rebuild_molhiv.main(words) == 2
    assert "there is one already: remove" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "rows", "reason"),
    [
        ("smiles,active", ["C,1"], "it has no column HIV_active, its columns are smiles, active"),
        ("smiles,HIV_active", ["C,0", "CC,2"], "line 3 has no SMILES text, or a label that is not 0 or 1"),
        ("smiles,HIV_active", [",1"], "line 2 has no SMILES text"),
        ("smiles,HIV_active", [], "it holds no molecule"),
    ],
)
def test_a_file_of_another_form_is_one_line_and_nothing_is_written(
    header: str, rows: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "hiv.csv", rows, header)
    assert rebuild_molhiv.main([str(path), "--dir", str(tmp_path / "data")]) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_text_that_is_no_molecule_is_named_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    path = write(tmp_path / "hiv.csv", ["C,0", "C1CC,0"])
    assert rebuild_molhiv.main([str(path), "--dir", str(tmp_path / "data")]) == 2
    assert "line 3: 'C1CC' is no molecule" in capsys.readouterr().err


def test_a_file_that_is_not_there_and_a_missing_rdkit_are_one_line(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebuild_molhiv.main([str(tmp_path / "none.csv")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    for name in ("rdkit", "rdkit.rdBase", "rdkit.Chem"):
        monkeypatch.setitem(sys.modules, name, None)
    assert rebuild_molhiv.main([str(source), "--dir", str(tmp_path / "data")]) == 2
    assert "RDKit, which makes graphs of them, is not installed: pip install rdkit" in capsys.readouterr().err


@pytest.mark.usefixtures("chemistry")
def test_a_full_disk_leaves_no_half_of_it(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rebuilt_molhiv, "_write_table", full)
    with pytest.raises(DataError, match="space"):
        rebuild(source, tmp_path / "data")
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


@pytest.mark.dataset
def test_the_published_counts_come_out(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason=NO_RDKIT)
    source = Path(os.environ["GRAPHGPS_KMIP_DATA"], "molhiv", "hiv.csv.gz")
    if not source.exists():
        pytest.skip(f"{source} is not there")
    mark = rebuild(source, tmp_path)
    known = PUBLISHED.statistics
    assert mark["graphs"] == known.graphs
    assert (round(mark["mean_nodes"], 1), round(mark["mean_edges"], 1)) == (known.mean_nodes, known.mean_edges)
    assert tuple(mark["sizes"].values()) == known.sizes
    assert mark["active"] == {"train": 1232, "val": 81, "test": 130}
