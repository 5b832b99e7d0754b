"""Amazon, Coauthor and CitationFull: compressed sparse matrices in one npz file each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphgps_kmip.data import DatasetRecord
from graphgps_kmip.data.sets.citation_networks import CITATION_FULL, SHCHUR
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import NODES, both_ways, check_refused, compressed, edges_of, opened, raw_folder

RECORDS = (*SHCHUR, *CITATION_FULL)
EDGES = [(0, 1), (1, 0), (2, 1), (9, 4), (3, 3)]  # one both ways, one to itself
WORDS = np.array([[node % 3, 0, (node == 5) * 0.5, 1] for node in range(NODES)], dtype=np.float32)


def place(record: DatasetRecord, root: Path, **more: np.ndarray) -> None:
    links = np.zeros((NODES, NODES), dtype=np.float32)
    links[tuple(np.array(EDGES).T)] = 1
    arrays = {**compressed("adj_", links), **compressed("attr_", WORDS), "labels": np.arange(NODES) % 3, **more}
    raw_folder(record, root)
    np.savez(root / record.raw.folder / record.raw.files[0], **arrays)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_words_become_zeros_and_ones_and_edges_go_both_ways(record: DatasetRecord, tmp_path: Path) -> None:
    place(record, tmp_path)
    graph = opened(record, tmp_path)
    assert graph.x.tolist() == (WORDS > 0).astype(float).tolist()
    assert edges_of(graph) == both_ways([(0, 1), (1, 2), (4, 9)])
    assert graph.y.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]


def test_the_split_is_drawn_once_and_kept(tmp_path: Path) -> None:
    record = SHCHUR[0]
    place(record, tmp_path)
    first, again = opened(record, tmp_path), opened(record, tmp_path)
    assert [int(first[f"{split}_mask"].sum()) for split in ("train", "val", "test")] == [6, 2, 2]
    assert first.train_mask.tolist() == again.train_mask.tolist()
    assert (tmp_path / "splits" / "PyG-Amazon-photo-random-0.pt").is_file()


def careless(path: Path) -> None:
    np.load(path, allow_pickle=True)["labels"]


@pytest.mark.parametrize("record", [RECORDS[0], RECORDS[2], RECORDS[4]], ids=lambda record: record.title)
def test_labels_that_hold_code_are_refused(record: DatasetRecord, tmp_path: Path) -> None:
    place(record, tmp_path, labels=np.array([Code(tmp_path / "it-ran")], dtype=object))
    check_refused(record, tmp_path, record.raw.files[0], "it asks for posix.mkdir", careless)
