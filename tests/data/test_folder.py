"""A user's own folder of graph files: how it is laid out and divided, and what has a label in it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import main
from graphgps_kmip.data import DataError
from graphgps_kmip.data.folder import folder_record
from tests.data.graph_files import arrays, numbers, opened, tensors, write

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "extending.md").read_text().split("### A folder of graphs")[1].split("\n## ")[0]


def test_a_folder_without_parts_is_divided_the_same_way_in_every_run(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {f"{number}.npz": arrays(number) for number in range(20)})
    first, second = opened(folder).splits, opened(folder).splits
    assert [len(part) for part in first] == [12, 4, 4]
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)


def test_three_folders_are_the_split(tmp_path: Path) -> None:
    places = ("train/1.npz", "train/2.npz", "train/10.npz", "val/a.npz", "test/b.pt")
    files = {name: (arrays if name.endswith("npz") else tensors)(number) for number, name in enumerate(places)}
    dataset = opened(write(tmp_path / "mine", files))
    assert numbers(dataset) == [0, 1, 2, 3, 4]
    assert [part.tolist() for part in dataset.splits] == [[0, 1, 2], [3], [4]]


LEVELS = {
    "one label each": ({f"{number}.npz": arrays(number) for number in range(5)}, "graph"),
    "several targets each": ({f"{number}.npz": arrays(y=np.ones((1, 5))) for number in range(5)}, "graph"),
    "a label for each node": ({f"{number}.npz": arrays(y=[0, 1, 2]) for number in range(5)}, "inductive_node"),
    "one graph in each part": (
        {f"{part}/a.npz": arrays(y=[0, 1, 2]) for part in ("train", "val", "test")},
        "inductive_node",
    ),
    "one graph": ({"a.npz": arrays(y=[0, 1, 2])}, "node"),
    "masks": ({"a.npz": arrays(y=[0, 1, 2], train_mask=[1, 0, 0], val_mask=[0, 1, 0], test_mask=[0, 0, 1])}, "node"),
    "first a graph of one node": (
        {"0.npz": arrays(x=np.ones((1, 2)), edge_index=np.empty((2, 0))), "1.npz": arrays(y=[0, 1, 2])},
        "inductive_node",
    ),
}


@pytest.mark.parametrize(("files", "level"), LEVELS.values(), ids=LEVELS)
def test_what_has_a_label_is_seen_from_the_files(files: dict[str, Any], level: str, tmp_path: Path) -> None:
    write(tmp_path / "mine", files)
    assert folder_record("mine", tmp_path).level == level


def test_where_the_files_do_not_tell_the_level_is_asked_for(tmp_path: Path) -> None:
    single = arrays(x=np.ones((1, 2)), edge_index=np.empty((2, 0)))
    folder = write(tmp_path / "mine", {f"{number}.npz": single for number in range(5)})
    with pytest.raises(DataError, match=r"mine: graphs of one node do not tell .*: set gnn.head to graph or inductive"):
        folder_record("mine", tmp_path)
    assert len(opened(folder, level="inductive_node")) == 5


def test_the_nodes_of_one_graph_are_divided_by_masks_or_at_random(tmp_path: Path) -> None:
    masks = {"train_mask": [1, 0, 0], "val_mask": [0, 1, 0], "test_mask": [0, 0, 1]}
    graph = opened(write(tmp_path / "mine", {"a.npz": arrays(y=[0, 1, 2], **masks)}))[0]
    for name, mask in masks.items():
        torch.testing.assert_close(graph[name], torch.tensor(mask, dtype=torch.bool))
    ten = {"x": np.ones((10, 1)), "edge_index": np.empty((2, 0)), "y": np.arange(10) % 2}
    graph = opened(write(tmp_path / "ten", {"a.npz": ten}))[0]
    assert [int(graph[name].sum()) for name in masks] == [6, 2, 2]


LAYOUTS = {
    "no files": (("notes.txt",), r"mine: there are no graph files \(.pt or .npz\); it has notes.txt"),
    "an empty part": (("train/a.npz", "val/a.npz", "test/a.csv"), "mine/test: there are no graph files .*has a.csv"),
    "a part is missing": (("train/a.npz", "valid/a.npz", "test/a.npz"), "a folder val is missing .*test, train, valid"),
    "files beside parts": (("a.npz", "train/a.npz", "val/a.npz", "test/a.npz"), "mine: graph files lie in it and in"),
}


@pytest.mark.parametrize(("names", "words"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_folder_that_is_not_laid_out_as_it_should_be_is_told_so(
    names: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "mine", {name: arrays() if name.endswith(".npz") else [] for name in names})
    with pytest.raises(DataError, match=words):
        opened(folder)


def test_a_folder_that_is_not_there_is_named_with_near_misses(tmp_path: Path) -> None:
    write(tmp_path / "rings", {"0.npz": arrays()})
    with pytest.raises(DataError, match=r"dataset.name: there is no folder '.*/ring': .* Did you mean rings\?"):
        folder_record("ring", tmp_path)
    with pytest.raises(DataError, match=r"dataset.name: there is no folder"):
        folder_record("", tmp_path)


def test_a_folder_has_no_synthetic_stand_in(tmp_path: Path) -> None:
    write(tmp_path / "mine", {"0.npz": arrays()})
    record = folder_record("mine", tmp_path)
    with pytest.raises(ValueError, match="dataset.sample: nothing is known of mine but its files"):
        record.sample(record, 0)


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", SECTION, re.S).group(1)


def test_the_example_of_the_docs_trains_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(ROOT / "configs", "configs")
    exec(compile(block("python"), "docs/extending.md", "exec"), {})
    Path("rings.yaml").write_text(block("yaml"))
    assert block("sh").split() == ["python", "main.py", "--cfg", "rings.yaml"]
    assert main.run(["--cfg", "rings.yaml", "optim.max_epoch", "1", "gt.layers", "1"]) == 0
    assert "test at the best epoch" in capsys.readouterr().out
