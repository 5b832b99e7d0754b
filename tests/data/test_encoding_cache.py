"""Encodings on disk: made again only for other data or settings, by one process, and never trusted when damaged."""

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

from graphgps_kmip.data import DataError, GraphDataset
from graphgps_kmip.data import precomputed_encodings as encoding_module
from graphgps_kmip.data.precomputed_encodings import Encoding, encoded
from tests.data.toy_encodings import Counted, Rings, folders, ones, start
from tests.processes import HANGS, wait_for


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_module, "NODES", 20)


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
    with pytest.raises(ValueError, match="graph 0 has no tensor weight, which an encoding reads"):
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


def test_two_encodings_are_kept_apart(rings: Rings, tmp_path: Path) -> None:
    one, two = ones("One", "one"), ones("Two", "two")
    encoded(rings(4), [one], tmp_path)
    (first,) = folders(tmp_path)
    made = (tmp_path / first / "one.values").stat().st_mtime_ns
    graph = encoded(rings(4), [two, one], tmp_path).graphs[3]
    assert "one" in graph
    assert "two" in graph
    assert [name.split("-")[0] for name in folders(tmp_path)] == ["One", "Two"]
    assert (tmp_path / first / "one.values").stat().st_mtime_ns == made


def test_provenance_lies_beside_the_values(rings: Rings, tmp_path: Path) -> None:
    encoded(rings(4), [Counted(tmp_path / "log").encoding], tmp_path / "kept")
    (name,) = folders(tmp_path / "kept")
    told = json.loads((tmp_path / "kept" / name / "provenance.json").read_text())
    assert told["key"]["settings"] == {"k": 2}
    assert (told["key"]["encoding"], told["key"]["version"], told["graphs"]) == ("Toy", 1, 4)
    assert set(told["key"]["data"]) == {"edge_index", "num_nodes"}
    assert told["package"].startswith("graphgps_kmip 0.")
    assert told["date"][:2] == "20"
    assert told["seconds"] >= 0
    assert told["attributes"]["toy"] == "<f4"


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


def test_values_of_other_data_under_this_name_are_not_used(rings: Rings, tmp_path: Path) -> None:
    toy, rewired = Counted(tmp_path / "log"), rings(4)
    rewired.graphs[2].edge_index[1, 0] = 0
    encoded(rings(4), [toy.encoding], tmp_path / "given")
    encoded(rewired, [toy.encoding], tmp_path / "other")
    (name,), (other,) = folders(tmp_path / "given"), folders(tmp_path / "other")
    (tmp_path / "other" / other).rename(tmp_path / "other" / name)
    encoded(rings(4), [toy.encoding], tmp_path / "other")
    assert toy.count == 12


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


def test_a_folder_that_cannot_be_made_is_one_line(rings: Rings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="encoding One-.*: cannot write to .*set dataset.dir to a folder of yours"):
        encoded(rings(3), [ones("One", "one")], tmp_path / "file")


def test_what_goes_to_another_process_is_the_file_and_not_its_values(rings: Rings, tmp_path: Path) -> None:
    big = Encoding("Big", {}, lambda graphs: [{"big": torch.ones(100_000)} for _ in graphs])
    graphs = encoded(rings(3), [big], tmp_path).graphs
    content = pickle.dumps(graphs)
    assert len(content) < 10_000
    torch.testing.assert_close(pickle.loads(content)[2].big, torch.ones(100_000))
    alone = pickle.loads(pickle.dumps(encoded(rings(3), [big], None).graphs))
    torch.testing.assert_close(alone[2].big, torch.ones(100_000))
