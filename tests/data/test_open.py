"""Records, their registry, and the splits of a loaded data set: random, kept ones, folds, one of several masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.common.torch_files import load_plain, save_plain
from graphgps_kmip.data import (
    DataError,
    DatasetRecord,
    GraphDataset,
    find,
    open_dataset,
    random_split,
    register_dataset,
)

Rings = Callable[[int], GraphDataset]


pytestmark = pytest.mark.usefixtures("own_registry")


def record_of(loaded: object, level: str = "graph", name: str = "rings") -> DatasetRecord:
    return DatasetRecord("Mine", lambda _root: loaded, "classification", name=name, level=level)


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


def test_a_stored_split_of_other_data_is_refused_and_one_that_cannot_be_stored_costs_a_warning(
    tmp_path: Path, rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    open_dataset(record_of(rings(20).graphs), tmp_path)
    with pytest.raises(DataError, match="this split is not one of 25 samples"):
        open_dataset(record_of(rings(25).graphs), tmp_path)
    (tmp_path / "file").write_text("")
    assert len(open_dataset(record_of(rings(20).graphs), split_dir=tmp_path / "file").splits.train) == 12
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
        ("fixed", 0, r"dataset\.split_mode must be one of standard, .*got 'fixed'"),
    ],
)
def test_a_split_that_does_not_exist_is_one_line(rings: Rings, mode: str, index: int, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        open_dataset(record_of(rings(20)), "", mode, split_index=index)


def test_stratified_folds_need_one_class_for_each_graph_and_a_data_set_a_graph(rings: Rings) -> None:
    record = replace(record_of(rings(20)), task_type="regression")
    with pytest.raises(ValueError, match="needs one class for each graph: use cv-kfold"):
        open_dataset(record, "", "cv-stratifiedkfold-5")
    with pytest.raises(ValueError, match="Mine/rings: the data set has no graphs"):
        open_dataset(record_of([]), "")


def test_a_registered_data_set_is_found_by_format_and_name() -> None:
    record = register_dataset(record_of([]))
    assert find("Mine", "rings") is record
    assert register_dataset(record) is record
    with pytest.raises(ValueError, match="the name 'Mine/rings' is taken by the dataset Mine/rings"):
        register_dataset(replace(record, summary="another"))
    assert find("Mine", "rings") is record


def test_a_format_with_one_nameless_data_set_needs_no_name() -> None:
    record = register_dataset(record_of([], name=""))
    assert find("Mine") is find("Mine", "none") is record
    with pytest.raises(ValueError, match=r"dataset\.name: Mine has no 'rings'. Allowed: none"):
        find("Mine", "rings")


def test_a_misspelt_format_or_name_meets_its_near_misses() -> None:
    with pytest.raises(ValueError, match=r"dataset\.format: unknown 'SKlearm'. Did you mean sklearn"):
        find("SKlearm", "digits")
    with pytest.raises(ValueError, match=r"dataset\.name: sklearn has no 'digit'. Did you mean digits"):
        find("sklearn", "digit")


@pytest.mark.parametrize("wrong", [{"level": "nodes"}, {"task_type": "classify"}])
def test_an_unknown_level_or_task_type_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=f"Mine/rings: {next(iter(wrong))} must be one of"):
        replace(record_of([]), **wrong)


def test_own_splits_are_kept_unless_a_random_one_is_asked_for(rings: Callable[[int], GraphDataset]) -> None:
    record = record_of(rings(20))
    assert open_dataset(record, "").splits.val.tolist() == [18]
    first, again, other = (open_dataset(record, "", "random", [0.5, 0.25, 0.25], seed) for seed in (0, 0, 1))
    assert [len(part) for part in first.splits] == [10, 5, 5]
    assert parts(first) == parts(again) != parts(other)


def test_one_graph_with_masks_keeps_them_and_without_gets_some(divided: Data) -> None:
    stored = open_dataset(record_of(divided, "node"), "")
    assert stored.graphs[0].val_mask.tolist() == divided.val_mask.tolist()
    bare = Data(x=divided.x, edge_index=divided.edge_index, y=divided.y)
    masks = open_dataset(record_of([bare], "node"), "").graphs[0]
    assert [int(masks[f"{split}_mask"].sum()) for split in ("train", "val", "test")] == [6, 2, 2]
    assert bool((masks.train_mask.int() + masks.val_mask.int() + masks.test_mask.int() == 1).all())
    assert "train_mask" not in bare
    redrawn = open_dataset(record_of(divided, "node"), "", "random", seed=5).graphs[0]
    assert not torch.equal(redrawn.train_mask, divided.train_mask)


def test_a_stratified_split_divides_each_class_alike() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    for part, share in zip(random_split(160, (0.6, 0.2, 0.2), labels=labels), (0.6, 0.2, 0.2), strict=True):
        assert np.bincount(labels[part]).tolist() == [100 * share, 50 * share, 10 * share]


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.0, 0.0, 0.0), (0.5, 0.5), (1.2, -0.1, -0.1)])
def test_shares_that_do_not_make_a_whole_are_refused(fractions: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"dataset\.split must be three positive shares"):
        random_split(10, fractions)


def test_too_few_samples_to_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="dataset.split: 1 samples cannot be divided .* each part needs one or more:"):
        random_split(1)
    with pytest.raises(ValueError, match="20 samples cannot be divided .* one or more of each class:"):
        random_split(20, labels=[0] * 19 + [1])
