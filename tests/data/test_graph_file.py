"""One graph file of a user's own: what is read from it, and what is said about one that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo
from graphgps_kmip.data.folder import folder_record
from tests.data.graph_files import EDGES, arrays, numbers, opened, tensors, write
from tests.data.sets.raw_files import Code


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
    torch.testing.assert_close(
        opened(folder, "classification_multilabel")[1].y, torch.tensor([[0, torch.nan, 1]]), equal_nan=True
    )


WRONG = {
    "no labels": (arrays(y=None), "y is missing; it has x, edge_index"),
    "near miss of a key": (arrays(edge_index=None, edges_index=EDGES), "edge_index is missing: is edges_index meant?"),
    "other capitals": (arrays(x=None, X=[[1.0]] * 3), "x is missing: is X meant?"),
    "near miss of a choice": (arrays(edge_atr=[1, 2, 3]), "edge_attr is missing: is edge_atr meant?"),
    "rows for columns": (
        arrays(edge_index=np.array(EDGES).T),
        r"edge_index must be \(2, number of edges\), got \(3, 2\)",
    ),
    "one row": (arrays(edge_index=[0, 1]), r"edge_index must be \(2, number of edges\), got \(2,\)"),
    "fractions": (arrays(edge_index=np.array(EDGES) / 2), "edge_index must be whole numbers, got torch.float64"),
    "nodes from 1": (arrays(edge_index=np.array(EDGES) + 1), "edge_index names nodes outside 0..2, for x has 3 rows"),
    "too few labels": (arrays(y=[0, 1]), r"y must have 1 or 3 rows, got shape \(2,\)"),
    "too few edge features": (arrays(edge_attr=[1, 2]), "edge_attr must have 3 rows"),
    "too short a mask": (arrays(train_mask=[True]), "train_mask must have 3 rows"),
    "objects": (arrays(y=np.array([None, "a"])), "it cannot be read .*allow_pickle=False"),
}


@pytest.mark.parametrize(("content", "words"), WRONG.values(), ids=WRONG)
def test_wrong_content_is_one_line_that_names_the_file(content: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays(), "1.npz": content, "2.npz": arrays()})
    with pytest.raises(DataError, match=rf"mine/1.npz: {words}") as raised:
        opened(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(["x", "y"], "graph 0: a graph must be a Data or a dict of tensors, got str"),
     ([tensors(), {**tensors(), "y": "cat"}], "graph 1: y must be numbers, got str")],
)  # fmt: skip
def test_a_wrong_graph_in_a_list_is_named_by_its_number(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"0.pt, {words}"):
        opened(write(tmp_path / "mine", {"0.pt": content}))


@pytest.mark.parametrize("name", ["0.pt", "0.npz"])
def test_a_file_with_code_is_named_and_nothing_of_it_runs(name: str, tmp_path: Path) -> None:
    proof, file = tmp_path / "it-ran", tmp_path / "mine" / name
    write(tmp_path / "mine", {name: {**(tensors() if name == "0.pt" else arrays()), "y": [Code(proof)]}})
    with pytest.raises(DataError, match=rf"mine/{name}: it cannot be read \(.*(posix.mkdir|allow_pickle=False)"):
        opened(file.parent)
    assert not proof.exists()
    torch.load(file, weights_only=False) if name == "0.pt" else dict(np.load(file, allow_pickle=True))
    assert proof.exists(), "it runs where nobody is careful"


@pytest.mark.parametrize("name", ["0.pt", "0.npz"])
@pytest.mark.parametrize("left", [0, 300])
def test_half_a_file_is_named(name: str, left: int, tmp_path: Path) -> None:
    file = write(tmp_path / "mine", {name: tensors() if name == "0.pt" else arrays()}) / name
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DataError, match=rf"mine/{name}: it cannot be read"):
        opened(file.parent)
