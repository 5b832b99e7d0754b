"""Encodings: computed once over all cores, stored under data and settings by one process, added to graphs."""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data import precomputed_encodings as encoding_module
from graphgps_kmip.data.precomputed_encodings import Encoding, encoded
from graphgps_kmip.errors import UserError
from tests.data.toy_encodings import Counted, Rings, drawn, folders, ones, start
from tests.processes import HANGS, wait_for


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "NODES", 20)


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
        for graph, original in zip(got.graphs, dataset.graphs, strict=True):
            assert graph.x is original.x
            for name, value in toy.of(original).items():
                torch.testing.assert_close(graph[name], value.float() if name == "toy" else value)
    assert [sorted(graph.keys()) for graph in dataset.graphs] == before
    assert toy.count == (30 if keep else 60)


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
    encoding = Encoding(
        "Odd", {"seed": 0}, lambda some: [{"odd": values[graph.graph_id]} for graph in some], random=True
    )
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
def test_a_killed_process_is_one_line(rings: Rings, tmp_path: Path) -> None:
    def dies(graphs: list[Data]) -> list[dict[str, Tensor]]:
        if any(graph.x[0, 0] == 13 for graph in graphs):
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"a": torch.ones(1)} for _ in graphs]

    with pytest.raises(UserError, match="^Dies: one of 2 processes was killed; it may have"):
        encoded(rings(30), [Encoding("Dies", {}, dies)], tmp_path, 2)
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


def test_two_encodings_of_one_attribute_and_a_random_one_without_a_seed_are_refused(rings: Rings) -> None:
    with pytest.raises(ValueError, match="Two: its attribute same comes from One already"):
        encoded(rings(4), [ones("One", "same"), ones("Two", "same")], None)
    with pytest.raises(ValueError, match="One: it is random, and its settings hold no seed"):
        Encoding("One", {}, list, random=True)


# Stored on disk


def test_data_settings_and_version_decide_whether_it_is_computed_again(rings: Rings, tmp_path: Path) -> None:
    def added(dataset: GraphDataset, **settings: Any) -> int:
        toy = Counted(tmp_path / "log", **settings)
        before = toy.count
        encoded(dataset, [toy.encoding], tmp_path / "kept")
        return toy.count - before

    dataset, labelled, rewired, larger = (copy.deepcopy(rings(6)) for _ in range(4))
    labelled.graphs[2].y += 1
    rewired.graphs[2].edge_index[1, 0] = 0
    larger.graphs[2].x = torch.zeros(9, 2)
    counts = [added(dataset), added(dataset), added(labelled)]
    assert counts == [6, 0, 0]
    assert [added(rewired), added(larger), added(dataset, k=3), added(dataset, version=2)] == [6, 6, 6, 6]
    assert [added(rewired), added(larger), added(dataset, k=3), added(dataset, version=2), added(dataset)] == [0] * 5
    turned = GraphDataset(dataset.graphs[::-1], dataset.splits)
    assert added(turned) == 6


def test_what_an_encoding_reads_decides_too(rings: Rings, tmp_path: Path) -> None:
    def means(graphs: list[Data]) -> list[dict[str, Tensor]]:
        return [{"mean": graph.x.mean().reshape(1, 1)} for graph in graphs]

    encoding = Encoding("Mean", {}, means, reads=("x",))
    dataset = rings(4)
    encoded(dataset, [encoding], tmp_path)
    dataset.graphs[1] = Data(x=dataset.graphs[1].x + 1)
    assert encoded(dataset, [encoding], tmp_path).graphs[1].mean == 2
    with pytest.raises(ValueError, match="graph 0, which an encoding reads, has no dense tensor weight"):
        encoded(dataset, [Encoding("Mean", {}, means, reads=("weight",))], tmp_path)


def test_the_same_bytes_in_another_shape_or_dtype_are_other_data(rings: Rings, tmp_path: Path) -> None:
    toy = Counted(tmp_path / "log")
    encoding = Encoding("Toy", {}, toy, reads=("edge_index", "weight"))
    for weight in (torch.zeros(6), torch.zeros(2, 3), torch.zeros(6).int()):
        dataset = rings(3)
        for graph in dataset.graphs:
            graph.weight = weight
        encoded(dataset, [encoding], tmp_path / "kept")
    assert toy.count == 9


def test_provenance_is_stored_with_the_values(rings: Rings, tmp_path: Path) -> None:
    encoded(rings(4), [Counted(tmp_path / "log").encoding], tmp_path / "kept")
    (name,) = folders(tmp_path / "kept")
    provenance = json.loads((tmp_path / "kept" / name / "provenance.json").read_text())
    assert (provenance["key"]["encoding"], provenance["key"]["settings"], provenance["graphs"]) == ("Toy", {"k": 2}, 4)
    assert set(provenance["key"]["data"]) == {"edge_index", "num_nodes"}
    assert {"package", "date", "seconds", "attributes"} < provenance.keys()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["toy.values", "columns.pt"])
def test_what_is_damaged_is_named_not_used_and_made_again(
    name: str, damage: Callable[[Path], None], rings: Rings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Counted(tmp_path / "log")
    encoded(rings(4), [toy.encoding], tmp_path / "kept")
    (folder,) = folders(tmp_path / "kept")
    damage(tmp_path / "kept" / folder / name)
    with caplog.at_level(logging.WARNING):
        got = encoded(rings(4), [toy.encoding], tmp_path / "kept")
    assert toy.count == 8
    assert f"{folder} is damaged" in caplog.text
    torch.testing.assert_close(got.graphs[3].toy, toy.of(rings(4).graphs[3])["toy"].float())
    encoded(rings(4), [toy.encoding], tmp_path / "kept")
    assert toy.count == 8


@pytest.mark.usefixtures("small_chunks")
def test_a_kill_during_computing_leaves_nothing_that_is_trusted(rings: Rings, tmp_path: Path) -> None:
    toy = Counted(tmp_path / "log")
    deadly = Encoding("Toy", {"k": 2}, lambda graphs: os._exit(9) if graphs[0].x[0, 0] > 9 else toy(graphs))
    process = start(encoded, rings(20), [deadly], tmp_path / "kept", 1)
    process.join()
    assert process.exitcode == 9
    (part,) = folders(tmp_path / "kept")
    assert part.endswith(".part")
    done = toy.count
    assert done > 0
    encoded(rings(20), [toy.encoding], tmp_path / "kept")
    assert toy.count - done == 20
    assert folders(tmp_path / "kept") == [part[1:-5]]


@pytest.mark.usefixtures("small_chunks")
def test_after_a_kill_the_processes_it_started_end_and_free_the_lock(rings: Rings, tmp_path: Path) -> None:
    def slow(graphs: list[Data]) -> list[dict[str, Tensor]]:
        (tmp_path / f"{os.getpid()}.pid").touch()
        time.sleep(60)
        return toy(graphs)

    toy = Counted(tmp_path / "log")
    alive, held = os.pipe()  # which all of them inherit
    process = start(encoded, rings(20), [Encoding("Toy", {"k": 2}, slow)], tmp_path / "kept", 2)
    os.close(held)
    wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert select.select([alive], [], [], HANGS)[0], "the other ends are closed, because no process is left"
    os.close(alive)
    second = start(encoded, rings(20), [toy.encoding], tmp_path / "kept", 1)
    second.join(HANGS)
    second.kill()
    assert second.exitcode == 0
    assert toy.count == 20


def test_of_two_processes_one_computes_and_one_waits(rings: Rings, tmp_path: Path) -> None:
    def slow(graphs: list[Data]) -> list[dict[str, Tensor]]:
        time.sleep(0.6)
        return toy(graphs)

    toy = Counted(tmp_path / "log")
    encoding = Encoding("Toy", {"k": 2}, slow)
    processes = [start(encoded, rings(5), [encoding], tmp_path / "kept", 1) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert toy.count == 5


def test_what_goes_to_another_process_is_the_file_and_not_its_values(rings: Rings, tmp_path: Path) -> None:
    big = Encoding("Big", {}, lambda graphs: [{"big": torch.ones(100_000)} for _ in graphs])
    graphs = encoded(rings(3), [big], tmp_path).graphs
    content = pickle.dumps(graphs)
    assert len(content) < 10_000
    torch.testing.assert_close(pickle.loads(content)[2].big, torch.ones(100_000))
    alone = pickle.loads(pickle.dumps(encoded(rings(3), [big], None).graphs))
    torch.testing.assert_close(alone[2].big, torch.ones(100_000))
