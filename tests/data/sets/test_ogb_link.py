"""Open Graph Benchmark, links: raw files in their published form, through ogb's class."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from graphgps_kmip.data import DataError, find
from graphgps_kmip.data.sets.ogb import LINKS, random_negatives
from tests.data.sets.raw_files import Code, opened
from tests.data.sets.raw_ogb import pack, write_tables

(COLLAB,) = LINKS
EDGES = [(0, 1), (1, 2), (3, 1), (0, 1)]  # two authors may work together in several years
VALID, TEST, UNKNOWN = [(0, 3)], [(4, 5), (2, 4)], [(5, 0), (5, 1), (5, 2)]


def pairs(edges: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    return {"edge": np.array(edges), "weight": np.ones(len(edges)), "year": np.full(len(edges), 2017)}


def place(root: Path) -> Path:
    folder = root / COLLAB.raw.folder
    tables = {
        "raw/edge": EDGES,
        "raw/num-node-list": [6],
        "raw/num-edge-list": [4],
        "raw/node-feat": [[node + column / 128 for column in range(128)] for node in range(6)],
        "raw/edge_weight": [1, 2, 1, 1],
        "raw/edge_year": [2015, 2016, 2017, 2017],
    }
    write_tables(folder, tables)
    split = folder / "split" / "time"
    split.mkdir(parents=True)
    torch.save(pairs(EDGES), split / "train.pt")
    torch.save({**pairs(VALID), "edge_neg": np.array(UNKNOWN)}, split / "valid.pt")
    torch.save({**pairs(TEST), "edge_neg": np.array(UNKNOWN)}, split / "test.pt")
    return folder


def test_three_graphs_share_the_training_edges_and_each_has_the_pairs_of_its_split(tmp_path: Path) -> None:
    place(tmp_path)
    dataset = opened(COLLAB, tmp_path)
    assert [part.tolist() for part in dataset.splits] == [[0], [1], [2]]
    train, valid, test = dataset.graphs
    for graph in (train, valid, test):
        assert graph.x.data_ptr() == train.x.data_ptr()
        assert graph.edge_index.tolist() == [[0, 1, 1, 2, 3, 1, 0, 1], [1, 0, 2, 1, 1, 3, 1, 0]]
    for graph, positives in ((valid, VALID), (test, TEST)):
        assert [tuple(pair) for pair in graph.edge_label_index.T.tolist()] == [*positives, *UNKNOWN]
        assert graph.edge_label.tolist() == [1] * len(positives) + [0] * 3
    assert [tuple(pair) for pair in train.edge_label_index[:, :4].T.tolist()] == EDGES
    assert train.edge_label.tolist() == [1] * 4 + [0] * 4
    torch.testing.assert_close(train.x[:, 0], torch.arange(6.0))


def test_the_training_negatives_are_the_same_in_every_run(tmp_path: Path) -> None:
    place(tmp_path)
    first = opened(COLLAB, tmp_path).graphs[0].edge_label_index
    torch.rand(7)
    torch.testing.assert_close(opened(COLLAB, tmp_path).graphs[0].edge_label_index, first)


def test_negatives_are_no_edges_in_either_direction_and_no_loops() -> None:
    edges = torch.tensor([[0, 1, 2, 3, 0] * 40, [1, 2, 3, 0, 0] * 40])  # a ring of four: two pairs are free
    drawn = random_negatives(edges, 4, seed=0)
    assert drawn.shape == (2, 200)
    assert {frozenset(pair) for pair in drawn.T.tolist()} == {frozenset((0, 2)), frozenset((1, 3))}
    assert not torch.equal(drawn, random_negatives(edges, 4, seed=1))


def test_a_graph_without_a_free_pair_is_named_instead_of_drawing_for_ever() -> None:
    with pytest.raises(ValueError, match="there are no negatives to draw"):
        random_negatives(torch.tensor([[0, 0, 1, 2], [1, 2, 2, 2]]), 3, seed=0)


def test_the_archive_as_downloaded_will_do(tmp_path: Path) -> None:
    pack(place(tmp_path), "collab")
    assert len(opened(COLLAB, tmp_path)) == 3


def test_splits_are_read_as_numpy_wrote_them_in_2020(tmp_path: Path) -> None:
    path = place(tmp_path) / "split" / "time" / "valid.pt"
    written = {**pairs(VALID), "edge_neg": np.array(UNKNOWN)}
    with zipfile.ZipFile(path, "w") as file:
        content = io.BytesIO()
        pickle.Pickler(content, protocol=2).dump(written)
        file.writestr("archive/data.pkl", content.getvalue().replace(b"numpy._core", b"numpy.core"))
        file.writestr("archive/version", "3\n")
    assert b"numpy.core.multiarray\n_reconstruct" in zipfile.ZipFile(path).read("archive/data.pkl")
    assert opened(COLLAB, tmp_path).graphs[1].edge_label.tolist() == [1, 0, 0, 0]


def test_pairs_that_would_run_code_are_refused(tmp_path: Path) -> None:
    path = place(tmp_path) / "split" / "time" / "train.pt"
    torch.save({"edge": Code(tmp_path / "it-ran")}, path)
    with pytest.raises(DataError, match=r"train\.pt cannot be used \(it asks for posix\.mkdir"):
        opened(COLLAB, tmp_path)
    assert not (tmp_path / "it-ran").exists()
    torch.load(path.with_name("train.pt.damaged-1"), weights_only=False)
    assert (tmp_path / "it-ran").exists()  # it does run where nobody is careful


def test_the_record_is_found_by_its_public_name() -> None:
    assert find("OGB", "ogbl-collab") is COLLAB
