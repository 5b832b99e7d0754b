"""Benchmarking GNNs from small files in their real raw format: a list of three lists of dicts, and pickled matrices."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import scipy.sparse
import torch

from graphgps_kmip.data import DataError, DatasetInfo, DatasetRecord, GraphDataset, find, open_dataset
from tests.data.sets.raw_files import Code

FORMAT = "PyG-GNNBenchmarkDataset"
COLOURS = {"MNIST": 1, "CIFAR10": 3}
COLUMNS = {"PATTERN": 3, "CLUSTER": 7}
SIZES = (3, 2, 1)
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


def raw_graph(name: str, number: int) -> dict[str, torch.Tensor]:
    """Return a path of three nodes as the published file holds it, with its number in features and label."""
    if name in COLUMNS:
        x = torch.eye(COLUMNS[name])[[number % 3, 1, 2]]
        return {"x": x, "edge_index": EDGES, "edge_attr": None, "y": torch.tensor([number % 2, 1, 0])}
    return {
        "x": torch.full((3, COLOURS[name]), number / 10),
        "edge_index": EDGES,
        "edge_attr": torch.tensor([0.1, 0.2, 0.3, 0.4]),
        "y": torch.tensor([number]),
        "pos": torch.arange(6.0).view(3, 2) + number,
    }


def write_raw(root: Path, name: str) -> Path:
    numbers = iter(range(sum(SIZES)))
    parts = [[raw_graph(name, next(numbers)) for _ in range(size)] for size in SIZES]
    file = root / "GNNBenchmarkDataset" / name / "raw" / f"{name}_v2.pt"
    file.parent.mkdir(parents=True)
    torch.save(parts, file)
    return file


def write_circles(root: Path, count: int = 10, save_old: bool = False) -> Path:
    """Write circles with a self-loop at node 0 as scipy matrices, and their labels."""
    folder = root / "GNNBenchmarkDataset" / "CSL" / "raw"
    folder.mkdir(parents=True)
    file = folder / "graphs_Kary_Deterministic_Graphs.pkl"
    circles = []
    for number in range(count):
        nodes = 4 + number
        row = [*range(nodes), 0]
        circle = scipy.sparse.coo_matrix(([1.0] * len(row), (row, [*range(1, nodes), 0, 0])), shape=(nodes, nodes))
        if save_old:  # as scipy kept them in 2019
            circle.__dict__["row"], circle.__dict__["col"] = circle.__dict__.pop("coords")
        circles.append(circle)
    content = pickle.dumps(circles, protocol=3)  # that of 2019, which names modules in plain text
    file.write_bytes(content.replace(b"scipy.sparse._coo", b"scipy.sparse.coo") if save_old else content)
    torch.save(torch.arange(count) % 10, folder / "y_Kary_Deterministic_Graphs.pt")
    return file


def check(dataset: GraphDataset, record: DatasetRecord) -> None:
    assert [part.tolist() for part in dataset.splits] == [[0, 1, 2], [3, 4], [5]]
    assert len(dataset) == sum(SIZES)
    for number, graph in enumerate(dataset.graphs):
        raw = raw_graph(record.name, number)
        x = torch.cat([raw["x"], raw["pos"]], dim=1) if "pos" in raw else raw["x"]
        torch.testing.assert_close(graph.x, x)
        torch.testing.assert_close(graph.edge_index, EDGES)
        assert graph.y.tolist() == raw["y"].tolist()
        assert (graph.edge_attr is None) == (raw["edge_attr"] is None)
        if graph.edge_attr is not None:
            torch.testing.assert_close(graph.edge_attr, raw["edge_attr"][:, None])
            torch.testing.assert_close(graph.pos, raw["pos"])
    info = DatasetInfo.of(dataset, record)
    features = record.features
    assert (info.dim_in, info.dim_edge, info.dim_out) == (features.node, features.edge, features.classes)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10", "PATTERN", "CLUSTER"])
def test_three_parts_are_read_with_position_beside_colour_and_the_official_split(name: str, tmp_path: Path) -> None:
    write_raw(tmp_path, name)
    record = find(FORMAT, name)
    check(open_dataset(record, tmp_path), record)
    check(open_dataset(record, tmp_path), record)  # the second time from what the first one made


def test_an_archive_as_downloaded_is_unpacked(tmp_path: Path) -> None:
    file = write_raw(tmp_path, "CIFAR10")
    archive = file.parents[1] / "CIFAR10_v2.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.write(file, file.name)
    file.unlink()
    record = find(FORMAT, "CIFAR10")
    check(open_dataset(record, tmp_path), record)
    assert archive.exists()


@pytest.mark.parametrize("old", [False, True], ids=["as today", "as in 2019"])
def test_circles_are_read_from_pickled_matrices_and_get_a_column_of_ones(tmp_path: Path, old: bool) -> None:
    write_circles(tmp_path, save_old=old)
    dataset = open_dataset(find(FORMAT, "CSL"), tmp_path)
    assert sorted(torch.cat(list(dataset.splits)).tolist()) == list(range(10))
    assert [len(part) for part in dataset.splits] == [6, 2, 2]
    for number, graph in enumerate(dataset.graphs):
        nodes = torch.arange(4 + number)
        torch.testing.assert_close(graph.edge_index, torch.stack([nodes, nodes.roll(-1)]))  # without the self-loop
        torch.testing.assert_close(graph.x, torch.ones(4 + number, 1))
        assert graph.y.tolist() == [number]


def test_circles_can_be_cross_validated(tmp_path: Path) -> None:
    write_circles(tmp_path, count=50)
    tested = []
    for fold in range(5):
        dataset = open_dataset(find(FORMAT, "CSL"), tmp_path, "cv-stratifiedkfold-5", split_index=fold)
        assert sorted(int(dataset[int(i)].y) for i in dataset.splits.test) == list(range(10))
        tested += dataset.splits.test.tolist()
    assert sorted(tested) == list(range(50))


@pytest.mark.parametrize("name", ["MNIST", "CSL"])
def test_a_file_with_code_is_named_and_nothing_of_it_runs(name: str, tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    file = write_circles(tmp_path) if name == "CSL" else write_raw(tmp_path, name)
    content = pickle.dumps([Code(proof)])
    file.write_bytes(content) if name == "CSL" else torch.save([[{"x": Code(proof)}], [], []], file)
    with pytest.raises(
        DataError, match=rf"{name}: .*{file.name} cannot be used \(it asks for posix\.mkdir, which no data"
    ):
        open_dataset(find(FORMAT, name), tmp_path)
    assert not proof.exists()
    pickle.loads(content)
    assert proof.exists(), "it runs where nobody is careful"


def test_half_a_file_is_named_and_set_aside(tmp_path: Path) -> None:
    file = write_raw(tmp_path, "PATTERN")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(
        DataError, match=r"PATTERN: .*PATTERN_v2.pt cannot be used .*renamed to PATTERN_v2.pt.damaged-1"
    ):
        open_dataset(find(FORMAT, "PATTERN"), tmp_path)
    assert file.with_name("PATTERN_v2.pt.damaged-1").exists()
