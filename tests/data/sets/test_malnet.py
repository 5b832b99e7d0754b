"""MalNet-Tiny from small edge lists as published, and the features that are made of them."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo, GraphDataset, find, open_dataset
from graphgps_kmip.data.sets.malnet import KINDS, MAX_DEGREE, RECORDS, featurize

RECORD = find("PyG-MalNetTiny", "LocalDegreeProfile")
HEAD = "# Directed graph\n# of calls\n# Nodes: 4\n# Edges: 4\n# FromNodeId\tToNodeId\n"
SPLIT = {
    "train": ["trojan/a/T1", "benign/b/B1", "adware/c/A1"],
    "val": ["downloader/d/D1"],
    "test": ["addisplay/e/S1", "trojan/a/T2"],
}
LABELS = [0, 1, 2, 3, 4, 0]  # the class numbers them as they come
EDGES = torch.tensor([[0, 0, 1, 2], [1, 2, 2, 3]])


def write_raw(root: Path) -> Path:
    """Write six graphs: the edges above, and one more edge from node 3 to node 4, 5, ... for each graph's number."""
    raw = root / "MalNetTiny" / "raw"
    lists = raw / "split_info_tiny" / "type"
    lists.mkdir(parents=True)
    number = 0
    for split, names in SPLIT.items():
        (lists / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))
        for name in names:
            file = raw / "malnet-graphs-tiny" / f"{name}.edgelist"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(HEAD + "".join(f"{a}\t{b}\n" for a, b in edges_of(number).T.tolist()))
            number += 1
    return raw


def edges_of(number: int) -> torch.Tensor:
    return torch.cat([EDGES, torch.tensor([[3] * number, range(4, 4 + number)], dtype=torch.long)], dim=1)


def check(dataset: GraphDataset) -> None:
    assert [part.tolist() for part in dataset.splits] == [[0, 1, 2], [3], [4, 5]]
    for number, graph in enumerate(dataset.graphs):
        torch.testing.assert_close(graph.edge_index, edges_of(number))
        assert graph.num_nodes == graph.x.size(0) == 4 + number
        assert graph.y.tolist() == [LABELS[number]]
        assert graph.x[:, 0].tolist() == [2, 1, 1, number, *[0] * number]  # the out-degree


def test_edge_lists_are_read_with_the_official_split_and_classes(tmp_path: Path) -> None:
    write_raw(tmp_path)
    check(open_dataset(RECORD, tmp_path))
    info = DatasetInfo.of(open_dataset(RECORD, tmp_path), RECORD)
    assert (info.dim_in, info.dim_out, info.directed) == (5, 5, True)


def test_archives_as_downloaded_are_unpacked(tmp_path: Path) -> None:
    raw = write_raw(tmp_path)
    with tarfile.open(raw.parent / "malnet-graphs-tiny.tar.gz", "w:gz") as packed:
        packed.add(raw / "malnet-graphs-tiny", "malnet-graphs-tiny")
    with zipfile.ZipFile(raw.parent / "split_info_tiny.zip", "w") as zipped:
        for split in SPLIT:
            name = f"split_info_tiny/type/{split}.txt"
            zipped.write(raw / name, name)
    shutil.rmtree(raw)
    check(open_dataset(RECORD, tmp_path))


def test_all_names_share_what_was_prepared(tmp_path: Path) -> None:
    write_raw(tmp_path)
    columns = []
    for record in RECORDS:
        columns.append(open_dataset(record, tmp_path)[5].x.size(1))
        processed = (tmp_path / "MalNetTiny" / "processed" / "data.pt").stat()
        assert processed == (tmp_path / "MalNetTiny" / "processed" / "data.pt").stat()
        if len(columns) == 1:
            first = processed.st_ino, processed.st_mtime_ns
        assert (processed.st_ino, processed.st_mtime_ns) == first
    assert columns == [record.features.node for record in RECORDS] == [5, MAX_DEGREE + 1, 1, 1]


def test_none_and_constant_are_one_data_set_under_two_names() -> None:
    assert find("PyG-MalNetTiny", "none").title == find("PyG-MalNetTiny", "Constant").title


def test_the_local_degree_profile_is_that_of_its_definition() -> None:
    graph = Data(edge_index=edges_of(2), num_nodes=6)
    x = featurize(graph, "LocalDegreeProfile").x
    out_degree = torch.bincount(graph.edge_index[0], minlength=6).float()
    for node in range(6):
        of_successors = out_degree[graph.edge_index[1, graph.edge_index[0] == node]]
        profile = [one(of_successors) for one in (torch.min, torch.max, torch.mean)] if len(of_successors) else [0] * 3
        torch.testing.assert_close(x[node, :4], torch.tensor([out_degree[node], *profile]))
        spread = of_successors.std(correction=0) if len(of_successors) else torch.tensor(0.0)
        torch.testing.assert_close(x[node, 4], spread, rtol=0, atol=1e-3)  # from a difference of squares
    assert graph.x is None, "the graph that was given stays as it is"


@pytest.mark.parametrize(("degree", "column"), [(0, 0), (7, 7), (100, 100), (101, 100), (250, 100)])
def test_degrees_above_the_maximum_share_the_last_column(degree: int, column: int) -> None:
    edges = torch.stack([torch.zeros(degree, dtype=torch.long), torch.arange(1, degree + 1)])
    x = featurize(Data(x=torch.zeros(degree + 1, 3), edge_index=edges), "OneHotDegree").x
    assert x.shape == (degree + 1, MAX_DEGREE + 1)
    assert x[0].nonzero().flatten().tolist() == [column]
    assert x.sum(1).tolist() == [1] * (degree + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_without_edges_has_features_too(kind: str) -> None:
    graph = featurize(Data(edge_index=torch.empty(2, 0, dtype=torch.long), num_nodes=3), kind)
    assert graph.x.shape[0] == 3
    assert graph.x.isfinite().all()


def test_another_kind_of_features_is_refused_with_near_misses() -> None:
    with pytest.raises(ValueError, match="has no 'OneHotDegrees'. Did you mean OneHotDegree?"):
        featurize(Data(edge_index=EDGES, num_nodes=4), "OneHotDegrees")


DAMAGE = {
    "half a line": ("0\t1\n1\t", r"line 7 must be two node numbers and a line break, got '1\\t'"),
    "half a number": ("0\t1\n1\t2", r"line 7 must be two node numbers and a line break, got '1\\t2'"),
    "a word": ("0\t1\none\t2\n", r"line 7 must be .*, got 'one\\t2'"),
    "one column": ("0\n1\n", "line 6 must be .*, got '0'"),
    "three columns": ("0 1 2\n1 2 3\n", "line 6 must be .*, got '0 1 2'"),
    "no edges": ("", "no edges below the 5 lines"),
}


@pytest.mark.parametrize(("edges", "words"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_edge_list_is_named_and_set_aside(edges: str, words: str, tmp_path: Path) -> None:
    file = write_raw(tmp_path) / "malnet-graphs-tiny" / "benign" / "b" / "B1.edgelist"
    file.write_text(HEAD + edges)
    with pytest.raises(DataError, match=rf"MalNet-Tiny: .*B1.edgelist cannot be used \({words}"):
        open_dataset(RECORD, tmp_path)
    assert file.with_name("B1.edgelist.damaged-1").exists()
    assert not (tmp_path / "MalNetTiny" / "processed").exists()


@pytest.mark.parametrize("name", ["malnet-graphs-tiny/trojan/a/T2.edgelist", "split_info_tiny/type/val.txt"])
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    (write_raw(tmp_path) / name).unlink()
    with pytest.raises(DataError, match=rf"MalNet-Tiny: .*raw/{name}"):
        open_dataset(RECORD, tmp_path)


def test_a_list_of_graphs_that_was_cut_off_is_named(tmp_path: Path) -> None:
    file = write_raw(tmp_path) / "split_info_tiny" / "type" / "train.txt"
    file.write_text(file.read_text()[:-2])
    with pytest.raises(DataError, match=r"train.txt cannot be used \(it does not end with a whole line"):
        open_dataset(RECORD, tmp_path)
