"""Heterophilous graphs: one npz each, with ten splits; Minesweeper and Tolokers also from their real files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from graphgps_kmip.data import DatasetInfo, DatasetRecord, find, open_dataset
from graphgps_kmip.data.dataset_info import mismatches
from graphgps_kmip.data.sets.heterophilous import PLATONOV as RECORDS
from tests.data.sets.raw_files import Code
from tests.data.sets.raw_nodes import (
    NODES,
    both_ways,
    check_masks,
    check_refused,
    edges_of,
    opened,
    raw_folder,
    split_masks,
)

FEATURES = np.random.default_rng(0).standard_normal((NODES, 3)).astype(np.float32)
EDGES = [(0, 1), (2, 3), (8, 9)]


def place(record: DatasetRecord, root: Path, **more: np.ndarray) -> None:
    splits = [split_masks(number) for number in range(10)]
    masks = {f"{name}s": np.stack([split[name] for split in splits]) for name in splits[0]}
    arrays = {"node_features": FEATURES, "node_labels": np.arange(NODES) % 2, "edges": np.array(EDGES), **masks}
    raw_folder(record, root)
    np.savez(root / record.raw.folder / record.raw.files[0], **{**arrays, **more})


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.title)
def test_edges_go_both_ways_and_every_split_can_be_chosen(record: DatasetRecord, tmp_path: Path) -> None:
    place(record, tmp_path)
    for number in (0, 7):
        graph = opened(record, tmp_path, number)
        check_masks(graph, split_masks(number))
    assert graph.x.tolist() == FEATURES.tolist()
    assert graph.y.tolist() == [0, 1] * 5
    assert edges_of(graph) == both_ways(EDGES)


def test_there_is_no_eleventh_split(tmp_path: Path) -> None:
    place(RECORDS[0], tmp_path)
    with pytest.raises(ValueError, match="Roman-empire has 10 splits, numbered from 0, got 10"):
        opened(RECORDS[0], tmp_path, 10)


def test_two_classes_are_scored_by_the_area_under_the_curve() -> None:
    metrics = {record.name: record.metric for record in RECORDS}
    assert {name for name, metric in metrics.items() if metric == "auc"} == {"Minesweeper", "Tolokers", "Questions"}
    assert metrics["Roman-empire"] == metrics["Amazon-ratings"] == "accuracy"


def test_labels_that_hold_code_are_refused(tmp_path: Path) -> None:
    place(RECORDS[0], tmp_path, node_labels=np.array([Code(tmp_path / "it-ran")], dtype=object))
    reason = "it asks for posix.mkdir"

    def careless(path: Path) -> None:
        np.load(path, allow_pickle=True)["node_labels"]

    check_refused(RECORDS[0], tmp_path, "raw/roman_empire.npz", reason, careless)


@pytest.mark.dataset
@pytest.mark.parametrize("name", ["Minesweeper", "Tolokers"])
def test_the_real_files_hold_what_was_published(name: str, tmp_path: Path) -> None:
    record = find("PyG-Heterophilous", name)
    raw = raw_folder(record, tmp_path)
    for file in Path(os.environ["GRAPHGPS_KMIP_DATA"], record.raw.folder, "raw").iterdir():
        (raw / file.name).symlink_to(file)
    for number in range(10):
        dataset = open_dataset(record, tmp_path, split_index=number)
        assert mismatches(record, DatasetInfo.of(dataset, record)) == []
