"""Open Graph Benchmark, graphs: raw files in their published form, read as ogb itself reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ogb.io.read_graph_pyg import read_graph_pyg
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Batch

from graphgps_kmip.data import DataError, DatasetRecord, find, ogb_tables
from graphgps_kmip.data.sets.ogb import GRAPHS, RECORDS
from graphgps_kmip.encoding.feature_encoders import ATOM
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_ogb import Rows, pack, write_tables

HIV, PCBA, PPA, CODE = GRAPHS
NAN = ""  # how an unknown label is written
# Three graphs: a path 0-1-2, a pair, and a single node.
COUNTS = {"raw/edge": [(0, 1), (1, 2), (1, 0)], "raw/num-node-list": [3, 2, 1], "raw/num-edge-list": [2, 1, 0]}
BONDS = [(0, 1, 1), (3, 0, 0), (1, 5, 1)]
ATOMS = [[number, *(size - 1 for size in ATOM[1:])] for number in (5, 6, 7, 0, 118, 3)]
WEIGHTS = [[number + column / 8 for column in range(7)] for number in range(3)]


def place(record: DatasetRecord, root: Path) -> Path:
    folder = root / record.raw.folder
    name = record.raw.files[-1].split("/")[1]
    split: dict[str, Rows] = {f"split/{name}/train": [2], f"split/{name}/valid": [0], f"split/{name}/test": [1]}
    own: dict[str, dict[str, Rows]] = {
        "ogbg-molhiv": {"raw/node-feat": ATOMS, "raw/edge-feat": BONDS, "raw/graph-label": [1, 0, 1]},
        "ogbg-molpcba": {
            "raw/node-feat": ATOMS,
            "raw/edge-feat": BONDS,
            "raw/graph-label": [[number, NAN] * 64 for number in (0, 1, 0)],
        },
        "ogbg-ppa": {"raw/edge-feat": WEIGHTS, "raw/graph-label": [36, 0, 9]},
    }
    write_tables(folder, {**COUNTS, **split, **own[record.name]})
    return folder


@pytest.mark.parametrize("record", [HIV, PCBA], ids=lambda record: record.name)
def test_molecules_have_the_categories_of_the_files_and_both_directions_of_each_bond(
    record: DatasetRecord, tmp_path: Path
) -> None:
    place(record, tmp_path)
    dataset = opened(record, tmp_path)
    assert [part.tolist() for part in dataset.splits] == [[2], [0], [1]]
    path, pair, single = dataset.graphs
    assert torch.cat([path.x, pair.x, single.x]).tolist() == ATOMS
    assert path.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert path.edge_attr.tolist() == [list(BONDS[number]) for number in (0, 0, 1, 1)]
    assert single.edge_index.shape == (2, 0)
    assert pair.edge_attr.tolist() == [list(BONDS[2])] * 2


def test_the_label_of_molhiv_is_one_class_of_each_graph(tmp_path: Path) -> None:
    place(HIV, tmp_path)
    dataset = opened(HIV, tmp_path)
    labels = torch.cat([graph.y for graph in dataset.graphs])
    torch.testing.assert_close(labels, torch.tensor([1, 0, 1]))


def test_unknown_labels_of_molpcba_are_nan_and_batches_keep_a_row_for_each_graph(tmp_path: Path) -> None:
    place(PCBA, tmp_path)
    dataset = opened(PCBA, tmp_path)
    y = Batch.from_data_list(list(dataset.graphs)).y
    assert y.shape == (3, 128)
    assert y[:, ::2].tolist() == [[0.0] * 64, [1.0] * 64, [0.0] * 64]
    assert bool(y[:, 1::2].isnan().all())


def test_ppa_has_one_kind_of_node_and_seven_numbers_of_each_edge(tmp_path: Path) -> None:
    place(PPA, tmp_path)
    dataset = opened(PPA, tmp_path)
    path, pair, single = dataset.graphs
    assert [part.tolist() for part in dataset.splits] == [[2], [0], [1]]
    assert [graph.x.tolist() for graph in (path, pair, single)] == [[[0]] * 3, [[0]] * 2, [[0]]]
    assert path.x.dtype == torch.int64
    torch.testing.assert_close(path.edge_attr, torch.tensor(WEIGHTS)[[0, 0, 1, 1]])
    assert [graph.y.tolist() for graph in (path, pair, single)] == [[36], [0], [9]]


@pytest.mark.parametrize("block", [1, 2, 1000])
@pytest.mark.parametrize("record", [HIV, PPA], ids=lambda record: record.name)
def test_tables_are_read_as_ogb_itself_reads_them(
    record: DatasetRecord, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogb_tables, "BLOCK", block)
    raw = place(record, tmp_path) / "raw"
    dataset, theirs = opened(record, tmp_path), read_graph_pyg(str(raw), add_inverse_edge=True)
    assert len(dataset) == len(theirs) == 3
    for ours, graph in zip(dataset.graphs, theirs, strict=True):
        assert ours.num_nodes == graph.num_nodes
        for key in ("edge_index", "edge_attr", *(["x"] if "x" in graph else [])):
            torch.testing.assert_close(ours[key], graph[key])


def test_ppa_with_fewer_edges_than_its_graphs_have_is_refused(tmp_path: Path) -> None:
    folder = place(PPA, tmp_path)
    write_tables(folder, {"raw/edge-feat": WEIGHTS[:2]})
    with pytest.raises(DataError, match=r"edge-feat\.csv\.gz cannot be used \(it has fewer rows than num-edge-list"):
        opened(PPA, tmp_path)


@pytest.mark.parametrize("record", [HIV, PPA], ids=lambda record: record.name)
def test_the_archive_as_downloaded_will_do_and_stays_where_it_is(record: DatasetRecord, tmp_path: Path) -> None:
    archive = record.raw.archives[0]
    pack(place(record, tmp_path), archive.removesuffix(".zip"))
    dataset = opened(record, tmp_path)
    assert dataset.graphs[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert [part.tolist() for part in dataset.splits] == [[2], [0], [1]]
    assert (tmp_path / record.raw.folder / archive).exists()
    assert (tmp_path / record.raw.folder / "raw" / "edge.csv.gz").exists()


def test_a_file_that_ogb_itself_does_not_look_for_is_named_when_it_is_missing(tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    (folder / "raw" / "num-node-list.csv.gz").unlink()
    with pytest.raises(DataError, match=r"place raw/num-node-list\.csv\.gz \(or hiv\.zip as downloaded\)"):
        opened(HIV, tmp_path)
    assert (folder / "raw" / "edge.csv.gz").exists()


@pytest.mark.parametrize("damage", [b"not a table", b""])
def test_a_damaged_table_is_named_and_set_aside(damage: bytes, tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    (folder / "raw" / "node-feat.csv.gz").write_bytes(damage)
    with pytest.raises(DataError, match=r"node-feat\.csv\.gz cannot be used"):
        opened(HIV, tmp_path)
    assert (folder / "raw" / "node-feat.csv.gz.damaged-1").exists()


def test_a_damaged_archive_is_named_and_set_aside(tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    pack(folder, "hiv")
    (folder / "hiv.zip").write_bytes((folder / "hiv.zip").read_bytes()[:200])
    with pytest.raises(DataError, match=r"hiv\.zip cannot be used"):
        opened(HIV, tmp_path)
    assert (folder / "hiv.zip.damaged-1").exists()


def test_an_archive_of_something_else_is_named_and_set_aside(tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    pack(folder, "pcba")
    (folder / "pcba.zip").rename(folder / "hiv.zip")
    with pytest.raises(DataError, match=r"hiv\.zip cannot be used \(there is no hiv in it\)"):
        opened(HIV, tmp_path)
    assert (folder / "hiv.zip.damaged-1").exists()


def test_a_split_in_a_file_of_torch_is_not_read(tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    torch.save({"train": Code(tmp_path / "it-ran")}, folder / "split" / "scaffold" / "split_dict.pt")
    assert [part.tolist() for part in opened(HIV, tmp_path).splits] == [[2], [0], [1]]
    assert not (tmp_path / "it-ran").exists()


def test_the_archive_of_another_data_set_of_ogb_is_not_mixed_up(tmp_path: Path) -> None:
    pack(place(PPA, tmp_path), "ogbg_ppi_medium")
    archive = tmp_path / PPA.raw.folder / "ogbg_ppi_medium.zip"
    (tmp_path / HIV.raw.folder).mkdir(parents=True)
    archive.rename(tmp_path / HIV.raw.folder / "hiv.zip")
    with pytest.raises(DataError, match=r"hiv\.zip cannot be used"):
        opened(HIV, tmp_path)


def test_a_processed_file_of_another_origin_is_not_read(tmp_path: Path) -> None:
    folder = place(HIV, tmp_path)
    (folder / "processed").mkdir()
    torch.save(Code(tmp_path / "it-ran"), folder / "processed" / "geometric_data_processed.pt")
    assert len(opened(HIV, tmp_path)) == 3
    assert not (tmp_path / "it-ran").exists()


def test_every_record_is_found_by_its_public_name() -> None:
    assert [find("OGB", record.name) for record in RECORDS] == list(RECORDS)


class Copied(TorchDispatchMode):
    """Count the numbers that operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.numbers += found.numel() if isinstance(found, torch.Tensor) else 0
        return found


@pytest.mark.parametrize("one_way", [False, True])
def test_what_is_copied_for_all_graphs_together_grows_like_their_tables(
    one_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, read = 200, []
    labels = ogb_tables._labels
    monkeypatch.setattr(ogb_tables, "_labels", lambda table: (read.append(len(table)), labels(table))[1])
    tables = {
        "edge": np.tile([[0, 1], [1, 2]], (count, 1)),
        "num-node-list": np.full((count, 1), 3),
        "num-edge-list": np.full((count, 1), 2),
        "graph-label": np.zeros((count, 1), np.int64),
        "node-feat": np.zeros((3 * count, 9), np.int64),
        "edge-feat": np.zeros((2 * count, 3), np.int64),
    }
    numbers = sum(table.size for table in tables.values())
    with Copied() as copied:
        assert len(list(ogb_tables._graphs(tables, one_way))) == count
    assert copied.numbers < 10 * numbers
    assert read == [count]
