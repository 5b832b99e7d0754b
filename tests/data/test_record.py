"""Records, their table, and loading with splits: what a user's own data set needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DatasetRecord, GraphDataset, find, open_dataset, register

pytestmark = pytest.mark.usefixtures("own_registry")


def record_of(loaded: object, level: str = "graph", format: str = "Mine", name: str = "rings") -> DatasetRecord:
    return DatasetRecord(format=format, name=name, load=lambda _root: loaded, task_type="classification", level=level)


def indices(dataset: GraphDataset) -> list[list[int]]:
    return [part.tolist() for part in dataset.splits]


def test_a_registered_data_set_is_found_by_format_and_name() -> None:
    record = register(record_of([]))
    assert find("Mine", "rings") is record
    assert register(record) is record
    with pytest.raises(ValueError, match="the name 'Mine/rings' is taken by the dataset Mine/rings"):
        register(replace(record, summary="another"))
    assert find("Mine", "rings") is record


def test_a_format_with_one_nameless_data_set_needs_no_name() -> None:
    record = register(record_of([], name=""))
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


def test_a_plain_list_of_graphs_is_divided_the_same_way_in_every_run(rings: Callable[[int], GraphDataset]) -> None:
    record = record_of(rings(20).graphs)
    first, other_seed = (open_dataset(record, "", seed=seed) for seed in (0, 1))
    assert [len(part) for part in first.splits] == [12, 4, 4]
    assert indices(first) == indices(other_seed)


def test_own_splits_are_kept_unless_a_random_one_is_asked_for(rings: Callable[[int], GraphDataset]) -> None:
    record = record_of(rings(20))
    assert open_dataset(record, "").splits.val.tolist() == [18]
    first, again, other = (open_dataset(record, "", "random", [0.5, 0.25, 0.25], seed) for seed in (0, 0, 1))
    assert [len(part) for part in first.splits] == [10, 5, 5]
    assert indices(first) == indices(again) != indices(other)


def test_one_graph_with_masks_keeps_them_and_without_gets_some(divided: Data) -> None:
    kept = open_dataset(record_of(divided, "node"), "")
    assert kept.graphs[0].val_mask.tolist() == divided.val_mask.tolist()
    bare = Data(x=divided.x, edge_index=divided.edge_index, y=divided.y)
    masks = open_dataset(record_of([bare], "node"), "").graphs[0]
    assert [int(masks[f"{split}_mask"].sum()) for split in ("train", "val", "test")] == [6, 2, 2]
    assert bool((masks.train_mask.int() + masks.val_mask.int() + masks.test_mask.int() == 1).all())
    assert "train_mask" not in bare
    redrawn = open_dataset(record_of(divided, "node"), "", "random", seed=5).graphs[0]
    assert not torch.equal(redrawn.train_mask, divided.train_mask)


def test_no_graphs_or_an_unknown_split_mode_are_refused() -> None:
    with pytest.raises(ValueError, match="Mine/rings: the data set has no graphs"):
        open_dataset(record_of([]), "")
    with pytest.raises(ValueError, match=r"dataset\.split_mode must be one of standard, .*got 'fixed'"):
        open_dataset(record_of([]), "", "fixed")
