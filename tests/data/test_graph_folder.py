"""A user's own folder of graph files: its layout, what is read from a file, what has a label, and what may be wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import main
from graphgps_kmip.data import DataError, DatasetInfo
from graphgps_kmip.data.graph_folder import MASKS, folder_record
from tests.data.graph_files import EDGES, arrays, numbers, opened, tensors, write
from tests.data.sets.raw_files import Code

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "extending.md").read_text().split("### A folder of graphs")[1].split("\n## ")[0]


def test_arrays_become_graphs_of_the_types_that_models_take_in_natural_order(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {f"g{number}.npz": arrays(number, pos=np.ones((3, 3))) for number in range(12)})
    dataset = opened(folder)
    assert numbers(dataset) == list(range(12))
    for number, graph in enumerate(dataset.graphs):
        torch.testing.assert_close(graph.x, torch.full((3, 2), number / 2))
        torch.testing.assert_close(graph.edge_index, torch.tensor(EDGES))
        torch.testing.assert_close(graph.y, torch.tensor([number % 3]))
        torch.testing.assert_close(graph.pos, torch.ones(3, 3))
    info = DatasetInfo.of(dataset, folder_record("mine", tmp_path))
    assert (info.dim_in, info.dim_out, info.directed, info.level) == (2, 3, True, "graph")


def test_tensors_of_all_kinds_of_files_are_read(tmp_path: Path) -> None:
    weights = torch.rand(3, 4)
    files = {
        "0.pt": Data(**tensors(0, edge_attr=weights)),
        "1.pt": tensors(1, edge_attr=weights.double()),
        "2.pt": [tensors(2, edge_attr=weights), Data(**tensors(3, edge_attr=weights))],
        "4.npz": arrays(4, edge_attr=weights.numpy()),
        **{f"{number}.pt": tensors(number, edge_attr=weights) for number in range(5, 10)},
    }
    dataset = opened(write(tmp_path / "mine", files))
    assert numbers(dataset) == list(range(10))
    for graph in dataset.graphs:
        torch.testing.assert_close(graph.edge_attr, weights)


def test_targets_are_floats_and_classes_whole_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {f"{number}.npz": arrays(y=float(number % 2)) for number in range(5)})
    torch.testing.assert_close(opened(folder)[1].y, torch.tensor([1]))
    torch.testing.assert_close(opened(folder, "regression")[1].y, torch.tensor([1.0]))
    whole = write(tmp_path / "whole", {f"{number}.npz": arrays(y=number) for number in range(5)})
    torch.testing.assert_close(opened(whole, "regression")[4].y, torch.tensor([4.0]))
    folder = write(tmp_path / "labels", {f"{number}.npz": arrays(y=[[0, np.nan, 1]]) for number in range(5)})
    dataset = opened(folder, "classification_multilabel")
    torch.testing.assert_close(dataset[1].y, torch.tensor([[0, torch.nan, 1]]), equal_nan=True)
    assert DatasetInfo.of(dataset, folder_record("labels", tmp_path, "classification_multilabel")).dim_out == 3


WRONG = {
    "no labels": (arrays(y=None), "y is missing; it has x, edge_index"),
    "near miss of a key": (arrays(edge_index=None, edges_index=EDGES), "edge_index is missing: is edges_index meant?"),
    "other capitals": (arrays(x=None, X=[[1.0]] * 3), "x is missing: is X meant?"),
    "near miss of a choice": (arrays(edge_atr=[1, 2, 3]), "edge_attr is missing: is edge_atr meant?"),
    "fractions": (arrays(edge_index=np.array(EDGES) / 2), "edge_index must be whole numbers, got torch.float64"),
    "a mask of edges": (arrays(edge_index=np.ones((2, 3), bool)), "edge_index must be whole numbers, got torch.bool"),
    "a mask alone": (arrays(train_mask=[1, 0, 0]), "val_mask is missing: give train_mask, val_mask, test_mask, or"),
    "node numbers for a mask": (arrays(**dict.fromkeys(MASKS, [0, 5, 2])), "train_mask must hold True and False, or 1"),
    "one feature without columns": (arrays(x=np.ones(3)), r"x must be \(nodes, features\), .* \(3,\): .*x\[:, None\]"),
    "a picture for each node": (arrays(x=np.ones((3, 2, 2))), r"x must be .* got shape \(3, 2, 2\): flatten"),
    "no features": (arrays(x=np.ones((3, 0))), r"x must be .* got shape \(3, 0\): .* a column of ones"),
    "complex numbers": (arrays(x=np.full((3, 2), 1j)), "x must be a dense tensor of real numbers, got .*complex128"),
    "text": (arrays(x=[["a", "b"]] * 3), "x must be numbers, got ndarray"),
    "a name of mini-batches": (arrays(batch=[0, 0, 0]), "batch is a name that graphs and mini-batches use"),
    "objects": (arrays(y=np.array([None, "a"])), r"it cannot be used \(ValueError: Object arrays cannot be loaded"),
}


@pytest.mark.parametrize(("content", "message"), WRONG.values(), ids=WRONG)
def test_wrong_content_is_one_line_that_names_the_file(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays(), "1.npz": content, "2.npz": arrays()})
    with pytest.raises(DataError, match=rf"mine/1.npz: {message}") as raised:
        opened(folder)
    assert "\n" not in str(raised.value)


def test_parts_of_a_graph_that_do_not_fit_name_graph_and_file(tmp_path: Path) -> None:
    files = {f"{number}.npz": arrays(number) for number in range(8)} | {"1.npz": arrays(x=np.full((3, 2), 1e300))}
    folder = write(tmp_path / "mine", files)
    with pytest.raises(DataError, match=r"mine, graph 1 \(.*mine/1.npz\): x holds an infinite value in row 0"):
        DatasetInfo.of(opened(folder, level="graph"), folder_record("mine", tmp_path, level="graph"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(["x", "y"], "graph 0: a graph must be a Data or a dict of tensors, got str"),
     ([tensors(), {**tensors(), "y": "cat"}], "graph 1: y must be numbers, got str")],
)  # fmt: skip
def test_a_wrong_graph_in_a_list_is_named_by_its_number(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"0.pt, {message}"):
        opened(write(tmp_path / "mine", {"0.pt": content}))


@pytest.mark.parametrize("name", ["0.pt", "0.npz"])
def test_a_file_with_code_is_named_and_nothing_of_it_runs(name: str, tmp_path: Path) -> None:
    proof, file = tmp_path / "it-ran", tmp_path / "mine" / name
    write(tmp_path / "mine", {name: {**(tensors() if name == "0.pt" else arrays()), "y": [Code(proof)]}})
    with pytest.raises(DataError, match=rf"mine/{name}: it cannot be used \((.*posix.mkdir|.*Object arrays)"):
        opened(file.parent)
    assert not proof.exists()
    torch.load(file, weights_only=False) if name == "0.pt" else dict(np.load(file, allow_pickle=True))
    assert proof.exists(), "it runs where nobody is careful"


@pytest.mark.parametrize("name", ["0.pt", "0.npz"])
@pytest.mark.parametrize("left", [0, 300])
def test_half_a_file_is_named(name: str, left: int, tmp_path: Path) -> None:
    file = write(tmp_path / "mine", {name: tensors() if name == "0.pt" else arrays()}) / name
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DataError, match=rf"mine/{name}: it cannot be used"):
        opened(file.parent)


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
    "divided": ({f"{part}/a.npz": arrays(y=[0, 1, 2]) for part in ("train", "val", "test")}, "inductive_node"),
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


LAYOUTS = {
    "no files": (("notes.txt",), r"mine: there are no graph files \(.pt, .npz or num-node-list.csv\); it has"),
    "an empty part": (("train/a.npz", "val/a.npz", "test/a.csv"), "mine/test: there are no graph files .*has a.csv"),
    "a part is missing": (("train/a.npz", "valid/a.npz", "test/a.npz"), "a folder val is missing .*test, train, valid"),
    "no graphs": (("a.pt",), "mine: its files hold no graphs"),
    "files next to parts": (("a.npz", "train/a.npz", "val/a.npz", "test/a.npz"), "mine: graph files are in it and in"),
}


@pytest.mark.parametrize(("names", "message"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_folder_that_is_not_laid_out_as_it_should_be_is_named(
    names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "mine", {name: arrays() if name.endswith(".npz") else [] for name in names})
    with pytest.raises(DataError, match=message):
        opened(folder)


def test_a_folder_that_is_not_there_is_named_with_near_misses(tmp_path: Path) -> None:
    write(tmp_path / "rings", {"0.npz": arrays()})
    with pytest.raises(DataError, match=r"dataset.name: there is no folder '.*/ring': .* Did you mean rings\?"):
        folder_record("ring", tmp_path)
    with pytest.raises(DataError, match=r"dataset.name: there is no folder"):
        folder_record("", tmp_path)


DIFFERENT = {
    "widths": ({"x": np.ones((3, 4))}, "mine/1.npz: graphs differ in the columns of x: 4 here, 2 in .*/mine/0.npz"),
    "an attribute of one": ({"mine": np.ones(3)}, "mine/0.npz: mine is missing, and .*/mine/1.npz has it"),
    "labels": ({"y": [[0, 1]]}, "mine/1.npz: graphs differ in the columns of y: 2 here, none in .*/mine/0.npz"),
}


@pytest.mark.parametrize(("changes", "message"), DIFFERENT.values(), ids=DIFFERENT)
def test_graphs_that_no_batch_can_join_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = {f"{number}.npz": arrays(number, **(changes if number == 1 else {})) for number in range(5)}
    with pytest.raises(DataError, match=message):
        opened(write(tmp_path / "mine", files))


LABELS = {
    "a class of a million": ({"y": 1_000_000}, "classification", "y holds class 1,000,000, and there are 4 different"),
    "a number": ({"y": 0.5}, "classification", r".* or predict numbers \(task_type regression; of a folder"),
    "a label of 7": ({"y": 7}, "classification_multilabel", "y holds 7: .* labels are 0, 1, or NaN for unknown"),
}


@pytest.mark.parametrize(("changes", "task_type", "message"), LABELS.values(), ids=LABELS)
def test_a_label_that_the_task_cannot_use_names_graph_and_file(
    changes: dict[str, Any], task_type: str, message: str, tmp_path: Path
) -> None:
    files = {f"{n}.npz": arrays(n, **({"y": n % 2} if task_type != "classification" else {})) for n in range(10)}
    folder = write(tmp_path / "mine", files | {"3.npz": arrays(3, **changes)})
    with pytest.raises(DataError, match=rf"^mine, graph 3 \(.*/mine/3.npz\): {message}"):
        DatasetInfo.of(opened(folder, task_type), folder_record("mine", tmp_path, task_type))


def test_many_classes_that_occur_pass(tmp_path: Path) -> None:
    folder = write(tmp_path / "many", {"all.pt": [tensors(y=3 * number) for number in range(200)]})
    assert DatasetInfo.of(opened(folder), folder_record("many", tmp_path)).dim_out == 598


def test_floats_of_many_values_are_classes_or_numbers_by_choice_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {f"{number}.npz": arrays(y=2.0 * number) for number in range(30)})
    with pytest.raises(DataError, match=r"mine/10.npz: y is 20 in torch.float32, .* dataset.task_type to regression"):
        opened(folder)
    assert opened(folder, "regression").graphs[29].y.tolist() == [58.0]
    whole = write(tmp_path / "whole", {f"{number}.npz": arrays(y=2 * number) for number in range(30)})
    few = write(tmp_path / "few", {f"{number}.npz": arrays(y=number % 20 * 1.0) for number in range(30)})
    assert [opened(other).graphs[19].y.tolist() for other in (whole, few)] == [[38], [19]]


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
