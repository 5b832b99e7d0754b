"""Splits of a loaded data set: kept ones, folds, one of several masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.common.torch_files import load_plain, save_plain
from graphgps_kmip.data import DataError, DatasetRecord, GraphDataset, open_dataset

Rings = Callable[[int], GraphDataset]


def record_of(loaded: object, level: str = "graph") -> DatasetRecord:
    return DatasetRecord(
        format="Mine", name="rings", load=lambda _root: loaded, task_type="classification", level=level
    )


def parts(dataset: GraphDataset) -> list[list[int]]:
    return [part.tolist() for part in dataset.splits]


def test_a_random_split_is_kept_with_its_indices_and_used_again(tmp_path: Path, rings: Rings) -> None:
    record = record_of(rings(20).graphs)
    first = parts(open_dataset(record, tmp_path))
    [file] = (tmp_path / "splits").iterdir()
    assert [part.tolist() for part in load_plain(file).values()] == first
    # What was kept counts, whatever would be drawn today.
    rest = torch.tensor([number for number in range(20) if number not in (5, 6)])
    save_plain(file, {"train": torch.tensor([5]), "val": torch.tensor([6]), "test": rest})
    for seed in (0, 1):
        assert parts(open_dataset(record, tmp_path, seed=seed))[:2] == [[5], [6]]
    drawn = open_dataset(record, tmp_path, "random", seed=1)
    assert len(drawn.splits.train) == 12


@pytest.mark.parametrize("bit", [None, 3])
def test_a_kept_split_that_is_damaged_is_one_line(tmp_path: Path, rings: Rings, bit: int | None) -> None:
    record = record_of(rings(20).graphs)
    train = open_dataset(record, tmp_path).splits.train.numpy().tobytes()
    [file] = (tmp_path / "splits").iterdir()
    content = file.read_bytes()
    place = content.index(train)
    flipped = content[:place] + bytes([content[place] ^ 1 << (bit or 0)]) + content[place + 1 :]
    file.write_bytes(b"" if bit is None else flipped)
    with pytest.raises(DataError, match=r"Mine-rings-random-0\.pt: .*remove it to draw a new one"):
        open_dataset(record, tmp_path)


def test_a_kept_split_of_other_data_is_refused(tmp_path: Path, rings: Rings) -> None:
    open_dataset(record_of(rings(20).graphs), tmp_path)
    with pytest.raises(DataError, match="this split is not one of 25 samples"):
        open_dataset(record_of(rings(25).graphs), tmp_path)


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(
    tmp_path: Path, rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "splits").write_text("a file")
    assert len(open_dataset(record_of(rings(20).graphs), tmp_path).splits.train) == 12
    assert "its random split is not kept" in caplog.text


@pytest.mark.parametrize("mode", ["cv-kfold-5", "cv-stratifiedkfold-5"])
def test_folds_test_every_graph_once_and_the_next_fold_validates(tmp_path: Path, rings: Rings, mode: str) -> None:
    record = record_of(rings(20))
    folds = [open_dataset(record, tmp_path, mode, split_index=index).splits for index in range(5)]
    assert sorted(torch.cat([fold.test for fold in folds]).tolist()) == list(range(20))
    for fold, following in zip(folds, [*folds[1:], folds[0]], strict=True):
        assert fold.val.tolist() == following.test.tolist()
        assert sorted(torch.cat(fold).tolist()) == list(range(20))
    if "stratified" in mode:
        assert all(int((fold.test % 2).sum()) == 2 for fold in folds)  # a ring's label is its parity
    assert len(list((tmp_path / "splits").iterdir())) == 5


@pytest.mark.parametrize(
    ("mode", "index", "line"),
    [
        ("cv-kfold-2", 0, "needs 3 folds or more, got 2"),
        ("cv-kfold-5", 5, r"dataset\.split_index must be in 0\.\.4"),
        ("cv-kfold-50", 0, "20 samples cannot be divided into 50 folds: .*: take fewer folds"),
        ("cv-kfold-", 0, r"dataset\.split_mode must be one of"),
        ("standard", 1, "has 1 splits, numbered from 0, got 1"),
    ],
)
def test_a_split_that_does_not_exist_is_one_line(rings: Rings, mode: str, index: int, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        open_dataset(record_of(rings(20)), "", mode, split_index=index)


def test_stratified_folds_want_one_class_a_graph(rings: Rings) -> None:
    record = replace(record_of(rings(20)), task_type="regression")
    with pytest.raises(ValueError, match="needs one class for each graph: use cv-kfold"):
        open_dataset(record, "", "cv-stratifiedkfold-5")


def test_one_of_several_masks_is_chosen_by_its_number(divided: Data) -> None:
    graph = Data(**divided.to_dict())
    columns = torch.stack([divided.train_mask, divided.train_mask.roll(1)], dim=1)
    graph.train_mask, graph.val_mask = columns, columns.roll(2, dims=0)  # the test mask is one for both, as in WikiCS
    record = record_of(graph, "node")
    for index in (0, 1):
        chosen = open_dataset(record, "", split_index=index).graphs[0]
        assert chosen.train_mask.tolist() == columns[:, index].tolist()
        assert chosen.test_mask.tolist() == divided.test_mask.tolist()
    with pytest.raises(ValueError, match="has 2 splits, numbered from 0, got 2"):
        open_dataset(record, "", split_index=2)
    assert graph.train_mask.dim() == 2
