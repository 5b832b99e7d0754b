"""One graph file of a user's own: what is read from it, and what is said about one that is wrong."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphgps_kmip.data import DataError, DatasetInfo
from graphgps_kmip.data.graph_folder import MASKS, folder_record
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
    "too short a mask": (arrays(**dict.fromkeys(MASKS, [True])), "train_mask must have 3 rows"),
    "a mask alone": (
        arrays(train_mask=[1, 0, 0]),
        "val_mask is missing: give train_mask, val_mask, test_mask, or none",
    ),
    "node numbers for a mask": (
        arrays(**dict.fromkeys(MASKS, [0, 5, 2])),
        "train_mask must hold True and False, or 1 and 0",
    ),
    "one feature without columns": (arrays(x=np.ones(3)), r"x must be \(nodes, features\), .* \(3,\): .*x\[:, None\]"),
    "a picture for each node": (arrays(x=np.ones((3, 2, 2))), r"x must be .* got shape \(3, 2, 2\): flatten"),
    "no features": (arrays(x=np.ones((3, 0))), r"x must be .* got shape \(3, 0\): .* a column of ones"),
    "no nodes": (
        arrays(x=np.ones((0, 2)), edge_index=np.zeros((2, 0))),
        r"x must be .*each 1 or more, got shape \(0, 2\)",
    ),
    "flat positions": (arrays(pos=np.ones(3)), r"pos must be \(nodes, coordinates\), got shape \(3,\)"),
    "NaN in x": (arrays(x=[[1.0, 2.0], [np.nan, 1.0], [0, 0]]), r"x holds NaN in row 1, column 0 \(1 of 6 values\)"),
    "infinity in edge_attr": (
        arrays(edge_attr=[[1.0], [2.0], [-np.inf]]),
        "edge_attr holds an infinite value in row 2, column 0",
    ),
    "NaN in pos": (arrays(pos=np.full((3, 2), np.nan)), "pos holds NaN in row 0, column 0"),
    "infinity in y": (arrays(y=np.inf), "y holds an infinite value in row 0"),
    "too large for float32": (arrays(x=np.full((3, 2), 1e300)), r"x holds 1e\+300, too large for float32"),
    "too large for int64": (
        arrays(edge_index=np.array([[0], [2**63 + 1]], np.uint64)),
        "edge_index holds 9223372036854775809, too large for int64",
    ),
    "a mask of edges": (arrays(edge_index=np.ones((2, 3), bool)), "edge_index must be whole numbers, got torch.bool"),
    "complex numbers": (arrays(x=np.full((3, 2), 1j)), "x holds complex128, not real numbers"),
    "words": (arrays(x=[["a", "b"]] * 3), "x holds <U1, not real numbers"),
    "columns with names": (arrays(x=np.zeros((3, 2), [("a", "f4")])), "x holds .*, not real numbers"),
    "a name of mini-batches": (arrays(batch=[0, 0, 0]), "batch is a name that graphs and mini-batches use"),
    "a name of graphs": (arrays(num_edges=3), "num_edges is a name that graphs and mini-batches use"),
    "objects": (arrays(y=np.array([None, "a"])), "y holds objects: save numbers"),
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


TENSORS = {
    "sparse x": (lambda: torch.eye(3).to_sparse(), "x is a sparse_coo tensor: save it dense"),
    "nested x": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "x is a nested tensor"),
    "complex x": (lambda: torch.full((3, 2), 1j), "x holds torch.complex64: save real numbers"),
    "quantized x": (lambda: torch.quantize_per_tensor(torch.ones(3, 2), 0.1, 0, torch.qint8), "x holds torch.qint8"),
    "x without values": (lambda: torch.ones(3, 2, device="meta"), "x was saved from the device 'meta'"),
    "x of a few bytes": (
        lambda: torch.ones(1).expand(10**11, 2),
        r"x claims .*, 745.1 GiB, and this machine has",
    ),
    "lists of different length": (lambda: [[1.0], [1.0, 2.0]], "x must be numbers, got list"),
}


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:.*quantize", "ignore:TypedStorage")
@pytest.mark.parametrize(("x", "words"), TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_no_model_takes_is_one_line_that_names_the_file(
    x: Callable[[], Any], words: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "mine", {"0.pt": tensors(), "1.pt": {**tensors(), "x": x()}})
    with pytest.raises(DataError, match=rf"mine/1.pt: {words}") as raised:
        opened(folder)
    assert "\n" not in str(raised.value)


def test_numbers_of_other_machines_are_read(tmp_path: Path) -> None:
    kinds = (">f8", np.longdouble, np.float16, bool, np.uint8)
    contents = {f"{number}.npz": arrays(x=np.ones((3, 2), kind)) for number, kind in enumerate(kinds)}
    gradient = {**tensors(), "x": torch.ones(3, 2, requires_grad=True)}
    for graph in opened(write(tmp_path / "mine", {**contents, "5.pt": gradient})).graphs:
        torch.testing.assert_close(graph.x.float(), torch.ones(3, 2))
        assert not graph.x.requires_grad


def claiming(file: Path, shape: tuple[int, ...], held: int) -> None:
    """Write an archive whose x claims a shape in its header, and holds so many bytes."""
    np.savez(file, **{key: value for key, value in arrays().items() if key != "x"})
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(
            "x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\0" * held
        )


def test_an_archive_that_claims_more_than_it_holds_takes_no_memory(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays()})
    claiming(folder / "1.npz", (100_000_000_000, 2), 64)
    with pytest.raises(DataError, match=r"1.npz: x claims shape \(100000000000, 2\), 745.1 GiB, and holds 64 bytes"):
        opened(folder)
    claiming(folder / "1.npz", (3, 2), 64)
    with pytest.raises(DataError, match=r"mine/1.npz: x claims shape \(3, 2\), 24 bytes, and holds 64 bytes"):
        opened(folder)


def test_an_archive_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays()})
    monkeypatch.setattr("graphgps_kmip.data.graph_folder.total_memory", lambda: 10)
    with pytest.raises(DataError, match="mine/0.npz: its arrays claim [0-9]+ bytes, and this machine has 10 bytes"):
        opened(folder)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_odd_members_of_an_archive_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays()})
    with zipfile.ZipFile(folder / "0.npz", "a") as archive:
        archive.writestr("x.npy", b"")
    with pytest.raises(DataError, match="mine/0.npz: it holds x.npy twice"):
        opened(folder)
    with zipfile.ZipFile(folder / "0.npz", "w") as archive:
        archive.writestr("../../x.txt", b"")
    with pytest.raises(DataError, match=r"mine/0.npz: '../../x.txt' in it is no array: write the file with"):
        opened(folder)


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"0.npz": arrays()})
    (folder / "1.npz").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="mine/1.npz: it is a broken link"):
        opened(folder)
    (folder / "1.npz").unlink()
    os.mkfifo(folder / "1.npz")
    with pytest.raises(DataError, match="mine/1.npz: it is not a regular file"):
        opened(folder)


@pytest.mark.parametrize("name", ["0.pt", "0.npz"])
def test_a_file_with_code_is_named_and_nothing_of_it_runs(name: str, tmp_path: Path) -> None:
    proof, file = tmp_path / "it-ran", tmp_path / "mine" / name
    write(tmp_path / "mine", {name: {**(tensors() if name == "0.pt" else arrays()), "y": [Code(proof)]}})
    with pytest.raises(DataError, match=rf"mine/{name}: (it cannot be read \(.*posix.mkdir|y holds objects)"):
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
