"""TUDataset from small text files as published: adjacency, graph of each node, labels of graphs and nodes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, GraphDataset, find, open_dataset
from graphgps_kmip.data.sets.tu import RECORDS

FORMAT = "PyG-TUDataset"
GRAPHS = 20
LABELLED = [record for record in RECORDS if any("node_labels" in file for file in record.raw.files)]


def write_raw(root: Path, record: DatasetRecord) -> Path:
    """Write paths of 3, 4, 3, 4, ... nodes; a node's label is its place in the path, from 1."""
    name, labelled = record.name, record in LABELLED
    columns: dict[str, list[str]] = {part: [] for part in ("A", "graph_indicator", "graph_labels", "node_labels")}
    start = 1
    for graph in range(GRAPHS):
        nodes = range(start, start + 3 + graph % 2)
        columns["A"] += [f"{a}, {b}" for i in nodes[:-1] for a, b in ((i, i + 1), (i + 1, i))]
        columns["graph_indicator"] += [str(graph + 1)] * len(nodes)
        columns["node_labels"] += [str(1 + place) for place in range(len(nodes))]
        columns["graph_labels"].append(str((-1, 1)[graph % 2]))
        start = nodes[-1] + 1
    folder = root / "TUDataset" / name / "raw"
    folder.mkdir(parents=True)
    for part, lines in columns.items():
        if labelled or part != "node_labels":
            (folder / f"{name}_{part}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def check(dataset: GraphDataset, record: DatasetRecord) -> None:
    assert [len(part) for part in dataset.splits] == [16, 2, 2]
    assert sorted(torch.cat(list(dataset.splits)).tolist()) == list(range(GRAPHS))
    for number, graph in enumerate(dataset.graphs):
        size = 3 + number % 2
        pairs = sorted((a, b) for i in range(size - 1) for a, b in ((i, i + 1), (i + 1, i)))
        assert graph.edge_index.T.tolist() == [list(pair) for pair in pairs]
        assert graph.y.tolist() == [number % 2]
        x = torch.eye(4)[:size] if record in LABELLED else torch.ones(size, 1)
        torch.testing.assert_close(graph.x, x)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_text_files_are_read_with_one_hot_labels_or_a_column_of_ones(record: DatasetRecord, tmp_path: Path) -> None:
    write_raw(tmp_path, record)
    check(open_dataset(record, tmp_path), record)
    info = DatasetInfo.of(open_dataset(record, tmp_path), record)
    assert (info.dim_in, info.dim_edge, info.directed) == (4 if record in LABELLED else 1, 0, False)
    assert len(LABELLED) == 4


@pytest.mark.parametrize("name", ["NCI1", "IMDB-BINARY"])
def test_an_archive_as_downloaded_is_unpacked(name: str, tmp_path: Path) -> None:
    record = find(FORMAT, name)
    raw = write_raw(tmp_path, record)
    with zipfile.ZipFile(raw.parent / f"{name}.zip", "w") as zipped:
        for file in raw.iterdir():
            zipped.write(file, f"{name}/{file.name}")
            file.unlink()
    raw.rmdir()
    check(open_dataset(record, tmp_path), record)
    assert (raw / f"{name}_A.txt").exists()


def test_ten_stratified_folds_test_each_graph_once(tmp_path: Path) -> None:
    record = find(FORMAT, "NCI1")
    write_raw(tmp_path, record)
    tested = []
    for fold in range(10):
        dataset = open_dataset(record, tmp_path, "cv-stratifiedkfold-10", split_index=fold)
        assert sorted(int(dataset[int(i)].y) for i in dataset.splits.test) == [0, 1]
        tested += dataset.splits.test.tolist()
    assert sorted(tested) == list(range(GRAPHS))


@pytest.mark.parametrize("part", ["A", "graph_indicator", "graph_labels", "node_labels"])
def test_a_file_that_was_cut_off_is_named_and_set_aside(part: str, tmp_path: Path) -> None:
    record = find(FORMAT, "NCI1")
    file = write_raw(tmp_path, record) / f"NCI1_{part}.txt"
    file.write_text(file.read_text()[:-1])
    with pytest.raises(DataError, match=rf"NCI1: .*NCI1_{part}.txt cannot be used .*does not end with a whole line"):
        open_dataset(record, tmp_path)
    assert file.with_name(f"NCI1_{part}.txt.damaged-1").exists()


@pytest.mark.parametrize("part", ["graph_indicator", "graph_labels", "node_labels"])
def test_a_file_with_too_few_lines_is_named(part: str, tmp_path: Path) -> None:
    record = find(FORMAT, "NCI1")
    file = write_raw(tmp_path, record) / f"NCI1_{part}.txt"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-4]))
    with pytest.raises(DataError, match=r"NCI1: NCI1_.*NCI1_graph_indicator.txt says .*: put good copies") as raised:
        open_dataset(record, tmp_path)
    assert f"NCI1_{part}.txt" in str(raised.value)
    assert len(list(file.parent.iterdir())) == 4, "nothing is set aside, for either file may be the wrong one"


def test_a_line_that_is_no_number_is_named(tmp_path: Path) -> None:
    record = find(FORMAT, "NCI1")
    file = write_raw(tmp_path, record) / "NCI1_A.txt"
    file.write_text(file.read_text().replace("2, 3", "2; 3", 1))
    with pytest.raises(DataError, match=r"NCI1: .*NCI1_A.txt cannot be used \(a line is no list of numbers: .*2; 3"):
        open_dataset(record, tmp_path)


@pytest.mark.parametrize("part", ["graph_labels", "node_labels"])
def test_a_file_that_is_not_there_is_named(part: str, tmp_path: Path) -> None:
    record = find(FORMAT, "ENZYMES")
    (write_raw(tmp_path, record) / f"ENZYMES_{part}.txt").unlink()
    with pytest.raises(DataError, match=rf"ENZYMES: .*raw/ENZYMES_{part}.txt"):
        open_dataset(record, tmp_path)
