"""The benchmark of encodings: its graphs, tiny runs, bounds in time and memory, equal results of both sides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from run.bench import encodings
from run.bench.encodings import DATA, PAIRS
from run.bench.harness import Bounds, MethodProcess
from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg, set_cfg
from torch_geometric.utils import is_undirected, to_networkx

from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs

CELL = {"bench": "encodings", "data": "graphs", "encoding": "RWSE", "method": "pyg", "processes": 1, "threads": 1}
CELL |= {"n": 1500, "num_graphs": 1, "device": "cpu", "folder": ""}


@pytest.fixture(autouse=True)
def config_afterwards() -> Iterator[None]:
    """What is computed in this process leaves no enabled encodings to other tests."""
    yield
    set_cfg(cfg)


def graphs(data: str, count: int = 2, nodes: int = 500) -> list[Data]:
    return DATA[data](np.random.default_rng(0), count, nodes)


def test_graphs_are_as_large_as_said_connected_and_undirected() -> None:
    planar, tree = graphs("graphs")
    (road,) = graphs("road")
    assert [graph.num_nodes for graph in (planar, tree, road)] == [479, 151, 500]
    assert road.num_edges == 2 * 750
    assert 150 < tree.num_edges / 2 <= 158
    assert 1300 < planar.num_edges / 2 < 3 * 479
    for graph in (planar, tree, road):
        assert is_undirected(graph.edge_index)
        assert nx.is_connected(to_networkx(graph, to_undirected=True))
    assert graphs("graphs")[0].edge_index.equal(planar.edge_index), "the same graphs in each run"


@pytest.mark.parametrize("data", [pytest.param("graphs", marks=pytest.mark.slow), "road"])
def test_a_run_compares_all_methods(data: str, tmp_path: Path) -> None:
    words = ["--data", data, "--graphs", "2", "--nodes", "300", "--repeats", "2", "--processes", "2", "--threads", "1"]
    assert encodings.main([*words, "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*.json")
    rows = json.loads(stored.read_text())["rows"]
    assert [(row["encoding"], row["method"]) for row in rows] == [
        (encoding, name) for encoding in ("LapPE", "RWSE") for name in ("ours", "pyg", "stored")
    ]
    for row in rows:
        assert (row["status"], row["repeats"]) == ("ok", 2), row
        assert 0 < row["total_min_ms"] <= row["total_ms"] <= row["total_max_ms"]
        assert row["faster"] == 1 or row["method"] != "pyg"


def test_a_second_start_reads_what_the_first_one_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = graphs("graphs", 2)
    with caplog.at_level("INFO"):
        first, second = (encodings.ours("RWSE", given, 1, tmp_path) for _ in range(2))
    assert caplog.text.count("computing it") == 1
    assert "read from" in caplog.text
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def test_random_walks_equal_those_of_torch_geometric() -> None:
    given = graphs("graphs", 4) + graphs("road")
    for own, other in zip(encodings.ours("RWSE", given), encodings.theirs("RWSE", given), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-5)


def test_eigenvectors_span_the_spaces_of_those_of_torch_geometric_in_double_precision() -> None:
    given = graphs("graphs", 4) + graphs("road")
    double = [graph.clone() for graph in given]
    for graph in double:
        graph.edge_weight = torch.ones(graph.num_edges, dtype=torch.float64)
    for graph, own, other in zip(given, encodings.ours("LapPE", given), encodings.theirs("LapPE", double), strict=True):
        values = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, PAIRS + 2)[0].numpy()[1:]
        spaces = np.split(np.arange(PAIRS + 1), np.flatnonzero(np.diff(values) > 1e-6) + 1)
        for space in (space for space in spaces if space[-1] < PAIRS):  # the last one may be cut
            ours, theirs = own[:, space], other[:, space]
            np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, rtol=0, atol=1e-5)


def test_a_method_that_is_late_or_takes_too_much_memory_becomes_a_row() -> None:
    late = MethodProcess(CELL | {"data": "road"}, Bounds(3, 1e-3), None, {})
    hungry = MethodProcess(CELL | {"data": "road", "n": 20_000, "memory_gib": 0.05}, Bounds(3, 60), None, {})
    for process, status in ((late, "time limit"), (hungry, "out of memory")):
        process.once()
        process.end()
        assert process.row() | {"status": status, "repeats": 0} == process.row()


def test_a_factor_is_a_bound_where_the_loop_was_late_and_none_where_it_failed() -> None:
    own = {"status": "ok", "total_min_ms": 2000.0}
    assert encodings.faster(own, {"status": "ok", "total_min_ms": 9000.0}, 60) == 4.5
    assert encodings.faster(own, {"status": "time limit"}, 60) == "> 30"
    assert encodings.faster(own, {"status": "out of memory"}, 60) is None
    assert encodings.faster({"status": "out of memory"}, own, 60) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "graphs,rivers"], "--data rivers: there are graphs, road"),
        (["--encodings", "SignNet"], "--encodings SignNet: there are LapPE, RWSE"),
        (["--limit", "0"], "must be positive"),
    ],
)
def test_unknown_names_and_empty_bounds_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encodings.parse(words)
