"""Encodings: computed once over all cores, kept under data and settings, added to graphs that stay as they are."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data import GraphDataset, make_loaders
from graphgps_kmip.data import precomputed_encodings as encoding_module
from graphgps_kmip.data import worker_processes as processes
from graphgps_kmip.data.precomputed_encodings import EncodedGraphs, Encoding, encoded
from graphgps_kmip.errors import UserError
from tests.data.toy_encodings import Counted, Rings, drawn, folders, ones


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "NODES", 20)
    monkeypatch.setattr(processes, "AHEAD", 1)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.usefixtures("small_chunks")
def test_each_graph_carries_its_own_values_and_the_given_graphs_stay_as_they_are(
    workers: int, keep: bool, rings: Rings, tmp_path: Path
) -> None:
    toy, dataset = Counted(tmp_path / "log"), rings(30)
    dataset.summary = object()
    before = [sorted(graph.keys()) for graph in dataset.graphs]
    for _ in range(2):  # computed, read
        got = encoded(dataset, [toy.encoding], tmp_path / "kept" if keep else None, workers)
        assert len(got) == 30
        assert got.splits is not None
        assert [part.tolist() for part in got.splits] == [part.tolist() for part in dataset.splits]
        assert got.summary is dataset.summary
        for graph, given in zip(got.graphs, dataset.graphs, strict=True):
            assert graph.x is given.x
            for name, value in toy.of(given).items():
                torch.testing.assert_close(graph[name], value.float() if name == "toy" else value)
    assert [sorted(graph.keys()) for graph in dataset.graphs] == before
    assert toy.count == (30 if keep else 60)


def test_what_a_reader_changes_is_its_own(rings: Rings, tmp_path: Path) -> None:
    for folder in (tmp_path, None):
        graphs = encoded(rings(3), [Counted(tmp_path / "log").encoding], folder).graphs
        graphs[0].toy.zero_()
        assert graphs[0].toy.min() == 1


def test_graphs_count_from_the_end_too_and_end(rings: Rings, tmp_path: Path) -> None:
    graphs = encoded(rings(5), [Counted(tmp_path / "log").encoding], None).graphs
    assert int(graphs[-1].x[0, 0]) == 4
    assert graphs[-1].toy_size == graphs[-1].num_nodes
    with pytest.raises(IndexError):
        graphs[5]


@pytest.mark.usefixtures("small_chunks")
def test_a_random_encoding_depends_on_seed_and_graph_but_not_on_processes(rings: Rings, tmp_path: Path) -> None:
    def values(seed: int, workers: int, folder: Path | None = tmp_path) -> list[list[float]]:
        return [graph.drawn.tolist() for graph in encoded(rings(12), [drawn(seed)], folder, workers).graphs]

    first = values(1, 1)
    assert len({tuple(value) for value in first}) == 12
    assert values(2, 1) != first
    assert values(1, 3, None) == values(1, 1) == first
    assert len(folders(tmp_path)) == 2
    dataset = rings(12)
    assert "graph_id" not in encoded(dataset, [drawn(1)], None, 1).graphs[0]
    assert "graph_id" not in dataset.graphs[0]


def test_computing_moves_no_random_numbers_of_the_run(rings: Rings) -> None:
    shaky = Encoding("Shaky", {}, lambda graphs: [{"shaky": torch.rand(2)} for _ in graphs])
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    encoded(rings(4), [shaky], None, 1)
    assert torch.rand(1) == want


def test_nan_infinity_and_empty_graphs_survive(tmp_path: Path) -> None:
    values = [torch.tensor([[float("nan"), 1.0]]), torch.empty(0, 2), torch.tensor([[float("inf"), -0.0]] * 2)]
    graphs = [Data(x=torch.ones(len(value), 1), edge_index=torch.empty(2, 0).long()) for value in values]
    encoding = Encoding("Odd", {"seed": 0}, lambda some: [{"odd": values[one.graph_id]} for one in some], random=True)
    for folder in (tmp_path, tmp_path, None):
        for graph, value in zip(encoded(GraphDataset(graphs), [encoding], folder).graphs, values, strict=True):
            torch.testing.assert_close(graph.odd, value, equal_nan=True, rtol=0, atol=0)
    nothing = Encoding("Nothing", {}, lambda some: [{"nothing": torch.empty(0)} for _ in some])
    assert encoded(GraphDataset(graphs), [nothing], tmp_path).graphs[1].nothing.shape == (0,)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.usefixtures("small_chunks")
def test_an_error_names_the_file_of_a_graph(workers: int, rings: Rings, tmp_path: Path) -> None:
    class Torn(list):
        def __getitem__(self, number: int) -> Data:
            if number == 13:
                raise EOFError("the file ends here")
            return super().__getitem__(number)

    def fails(graphs: list[Data]) -> list[dict[str, Tensor]]:
        assert all(graph.x[0, 0] != 7 for graph in graphs), "bad luck"
        return [{} for _ in graphs]

    dataset, files = rings(30), [f"/data/{number}.pt" for number in range(30)]
    whole = GraphDataset(dataset.graphs, dataset.splits, files=files)
    with pytest.raises(UserError, match=r"^Fails: graph 7 \(/data/7.pt\): AssertionError: bad luck"):
        encoded(whole, [Encoding("Fails", {}, fails)], tmp_path, workers)
    with pytest.raises(UserError, match=r"^graph 13 \(/data/13.pt\) cannot be read \(EOFError: the file ends here\)"):
        encoded(GraphDataset(Torn(dataset.graphs), files=files), [ones("Ones", "a")], tmp_path, workers)
    assert folders(tmp_path) == []


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_process_is_told_with_the_graphs_it_worked_on(rings: Rings, tmp_path: Path) -> None:
    def dies(graphs: list[Data]) -> list[dict[str, Tensor]]:
        if any(graph.x[0, 0] == 13 for graph in graphs):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"a": torch.ones(1)} for _ in graphs]

    with pytest.raises(UserError, match="^Dies: one of 2 processes was killed at graphs ") as raised:
        encoded(rings(30), [Encoding("Dies", {}, dies)], tmp_path, 2)
    first, last = map(int, re.search(r"graphs (\d+) to (\d+); it may have", str(raised.value)).groups())
    assert first <= 13 <= last
    assert folders(tmp_path) == []


WRONG = [
    (lambda graphs: [{"a": torch.ones(1)}] * (len(graphs) - 1), "3 results for 4 graphs"),
    (lambda graphs: [{"a": torch.ones(1)}] + [{}] * (len(graphs) - 1), "graph 1: a must be a dense real tensor"),
    (lambda graphs: [{"a": [1.0]} for _ in graphs], "graph 0: a must be a dense real tensor"),
    (lambda graphs: [{"a": torch.ones(1, 1)}] + [{"a": torch.ones(1)}] * (len(graphs) - 1), "graph 1: a differs"),
    (lambda graphs: [{"a": torch.ones(1)}] * (len(graphs) - 1) + [{"a": torch.ones(1).int()}], "graph 3: a differs"),
    (lambda graphs: [{"../a": torch.ones(1)} for _ in graphs], "'../a' cannot be the name of an attribute"),
    (lambda graphs: [{"x": torch.ones(1)} for _ in graphs], "its attribute x comes from the data set already"),
]


@pytest.mark.parametrize(("compute", "message"), WRONG)
def test_attributes_that_do_not_fit_are_one_line(compute: Callable[..., Any], message: str, rings: Rings) -> None:
    with pytest.raises(ValueError, match=f"Wrong: {message}"):
        encoded(rings(4), [Encoding("Wrong", {}, compute)], None)


@pytest.mark.usefixtures("small_chunks")
def test_attributes_that_differ_between_chunks_are_one_line(rings: Rings) -> None:
    encoding = Encoding("Wrong", {}, lambda graphs: [{f"a{len(graphs) % 2}": torch.ones(1)} for _ in graphs])
    with pytest.raises(ValueError, match="Wrong: attributes differ in name, dtype or dimensions"):
        encoded(rings(21), [encoding], None)


def test_two_encodings_cannot_give_one_attribute(rings: Rings) -> None:
    with pytest.raises(ValueError, match="Two: its attribute same comes from One already"):
        encoded(rings(4), [ones("One", "same"), ones("Two", "same")], None)


def test_an_encoding_that_cannot_be_kept_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="a name may hold"):
        Encoding("../One", {}, list)
    with pytest.raises(ValueError, match="One: it is random, and its settings hold no seed"):
        Encoding("One", {}, list, random=True)
    with pytest.raises(ValueError, match="One: settings must be numbers, strings and lists"):
        Encoding("One", {"k": object()}, list)


class OnDisk(Sequence):
    """Graphs that are read one at a time, as large data sets give them."""

    def __init__(self, folder: Path, graphs: Sequence[Data]) -> None:
        self.folder, self.num = folder, len(graphs)
        for number, graph in enumerate(graphs):
            torch.save(graph.to_dict(), folder / f"{number}.pt")

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, index: int) -> Data:
        return Data(**torch.load(self.folder / f"{index}.pt"))


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.usefixtures("small_chunks")
def test_batches_of_graphs_on_disk_contain_the_attributes(loader_workers: int, rings: Rings, tmp_path: Path) -> None:
    def twice(graphs: list[Data]) -> list[dict[str, Tensor]]:
        return [{"twice": 2 * graph.x[:, :1]} for graph in graphs]

    dataset = rings(12)
    dataset = GraphDataset(OnDisk(tmp_path, dataset.graphs), dataset.splits)
    got = encoded(dataset, [Encoding("Twice", {}, twice, reads=("x",)), drawn(3)], tmp_path / "kept", 2)
    assert isinstance(got.graphs, EncodedGraphs)
    seen = 0
    for loader in make_loaders(got, "graph", 4, seed=0, num_workers=loader_workers):
        for batch in loader:
            torch.testing.assert_close(batch.twice, 2 * batch.x[:, :1])
            assert batch.drawn.shape == (3 * batch.num_graphs,)
            seen += batch.num_graphs
    assert seen == 12


def test_one_graph_divided_by_masks_keeps_them_and_its_batch_has_the_attributes(divided: Data, tmp_path: Path) -> None:
    toy = Counted(tmp_path / "log")
    for _ in range(2):
        got = encoded(GraphDataset([divided]), [toy.encoding], tmp_path / "kept")
        assert got.splits is None
        for loader in make_loaders(got, "node", 1, seed=0):
            (batch,) = loader
            torch.testing.assert_close(batch.val_mask, divided.val_mask)
            torch.testing.assert_close(batch.toy, toy.of(divided)["toy"].float())
        torch.testing.assert_close(got.data.train_mask, divided.train_mask)
    assert toy.count == 1


def test_no_encodings_and_no_graphs_are_no_trouble(rings: Rings, tmp_path: Path) -> None:
    dataset = rings(3)
    assert encoded(dataset, [], tmp_path) is dataset
    assert len(encoded(GraphDataset([]), [ones("One", "one")], tmp_path)) == 0
    assert len(encoded(GraphDataset([]), [ones("One", "one")], None)) == 0
