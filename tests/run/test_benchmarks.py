"""Every benchmark runs on a tiny case and prints its table; what it cannot measure is a row, a mistake one line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from run.bench import attention, cells, encodings, epochs, geco_scaling, layer, pair_models, tree, two_stage_memory
from run.bench.harness import Bounds, measure
from run.bench.tree import BallTree
from torch_geometric.graphgym.config import cfg, set_cfg

from graphgps_kmip.encoding.laplacian import laplacian_eigenpairs
from tests.experiments.repository import EXPERIMENTS
from tests.reference import ball_tree as reference
from tests.search.problems import Ragged, check_answer

NUMBERS = (2, 3, 4, 5, 17, 19, 20, 30, 31, 32)
EFFICIENCY = [experiment for experiment in EXPERIMENTS.values() if experiment.number in NUMBERS]
TINY: list[tuple[ModuleType, str]] = [
    (attention, "--setting search --n 100:200 --repeats 5 --limit 60 --methods 'matmul*,ours: exact'"),
    (layer, "--n 40 --batch 2x10 --dims 8 --heads 2 --repeats 5 --methods kMIP,GECO,GRIT,sL2"),
    (encodings, "--data road --graphs 2 --nodes 300 --repeats 2 --processes 2"),
    (epochs, "--cfg configs/SmallGraphs/zinc-grit.yaml --graphs 2 --repeats 3 --write {out}/graphs.pt"),
    (geco_scaling, "--n 32:256 --dims 8 --repeats 2 --fit-from 32 --cells {out}/cells"),
    (pair_models, "--data tiny --repeats 3 --table {out}/table.json"),
    (two_stage_memory, "--data actor:synthetic --nodes 400 --table {out}/table.json"),
    pytest.param(tree, "--quick --backends ball_tree,cpu", marks=pytest.mark.compiler),
]


@pytest.fixture(autouse=True)
def config_afterwards() -> Iterator[None]:
    """What is computed in this process leaves no enabled encodings to other tests."""
    yield
    set_cfg(cfg)


@pytest.mark.parametrize(("bench", "argv"), TINY, ids=lambda value: getattr(value, "__name__", ""))
def test_a_benchmark_prints_its_table(
    bench: ModuleType, argv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tree, "QUICK", {"sizes": [50, 100], "queries": 20, "repeats": {"nodes": 2, "time": 2}})
    argv = shlex.split(argv.format(out=tmp_path))
    assert bench.main([*argv, "--threads", "1", "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert rows
    assert {row.get("status", "ok") for row in rows} == {"ok"}
    printed = capsys.readouterr().out
    assert "| --" in printed
    assert all(row["method"] in printed for row in rows if "method" in row)
    for written in [*tmp_path.glob("cells/*.json"), *tmp_path.glob("table.json")]:
        assert json.loads(written.read_text())["cells"]


@pytest.mark.parametrize(
    ("method", "limit", "status"),
    [("matmul+topk", 600, "out of memory"), ("ours: chunked", 0.5, "time limit")],  # 360 GB; minutes
)
def test_out_of_memory_and_time_are_rows(method: str, limit: float, status: str) -> None:
    cell = {"bench": "attention", "setting": "search", "data": "gaussian", "dim": 10, "k": 10, "heads": 1, "n": 300_000}
    (row,) = measure([[cell | {"device": "cpu", "threads": 1, "method": method}]], Bounds(repeats=5, limit=limit))
    assert row["status"] == status


@pytest.mark.parametrize(
    ("bench", "argv", "message"),
    [
        (attention, ["--methods", "nobody"], "--methods nobody: no method of this name"),
        (attention, ["--data", "batch:2x5x3", "--heads", "2"], "--heads: the data batch:2x5x3 has 3"),
        (attention, ["--limit", "0"], "--limit must be positive"),
        (attention, ["--data", "gausian"], "--data gausian: unknown, choose gaussian"),
        (encodings, ["--data", "graphs,rivers"], "--data rivers: there are graphs, road"),
        (epochs, ["--cfg", "configs/quickstart/digits-gcn.yaml"], "--cfg configs/quickstart/digits-gcn.yaml: its"),
        (geco_scaling, ["--dims", "10"], "--dims must be divisible by --heads, got 10 and 4"),
        (pair_models, ["--data", "zinc", "--table", "x.json"], "--table needs --data peptides"),
        (tree, ["--backends", "cpu,treee"], "--backends treee: there are ball_tree, tree, cpu"),
        (two_stage_memory, ["--data", "pubmed"], "--data pubmed: there are"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    bench: ModuleType, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")


def fill(table: str, folder: Path, rows: list[dict[str, Any]], setting: str) -> dict[str, Any]:
    options = {"data": "gaussian", "dims": 10, "k": 10, "heads": 1, "device": "cpu"}
    record = {"bench": "attention", "reference": "x", "created": "today", "code": "c0", "options": options}
    record |= {"machine": {"cpu": "a CPU", "cores": 2, "threads": 1, "packages": {}}}
    rows = [{"setting": setting, "status": "ok"} | row for row in rows]
    (folder / "record.json").write_text(json.dumps(record | {"rows": rows}))
    code = cells.main(["--tables", table, "--records", str(folder / "record.json"), "--out", str(folder)])
    return json.loads((folder / f"{table}.json").read_text()) if code == 0 else {}


def test_cells_of_a_table_are_passes_a_median_or_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"method": "faiss ivf", "n": 1000, "total_ms": 4.0, "recall": 0.75, "memory_mib": 3.0}
    made = fill("searches", tmp_path, [row], "search")
    assert made["cells"] == {"faiss ivf, N=10^3.0": {"time": [4.0], "recall": [0.75], "memory": [3.0]}}
    rows = [
        {"method": cells.FULL, "n": 100, "total_ms": 2.0, "total_passes_ms": [1.0, 2.0, 6.0]},
        {"method": cells.FULL, "n": 1000, "status": "skipped (estimated 99 s)"},
    ]
    made = fill("figure6.1", tmp_path, rows, "inference")
    assert "[1.0, 2.0, 6.0]" in str(made["cells"])
    assert "time limit" in str(made["cells"])
    assert made["hardware"] == {"cpu": "a CPU", "cores": 2, "threads": 1}
    assert not fill("figure6.1", tmp_path, [rows[0] | {"n": 5000}], "inference")
    assert "n = 5000 is no half power of ten" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", EFFICIENCY, ids=lambda row: row.id)
def test_every_command_is_understood_by_its_script_and_makes_the_files_of_tables_and_figures(experiment: Any) -> None:
    parsers = {f"run/bench/{bench.__name__.split('.')[-1]}.py": bench.parse for bench in (attention, cells, tree)}
    for command in experiment.commands.values():
        for text in (command.run, command.sample):
            script, *argv = shlex.split(text)
            if "--approximate" not in argv:  # needs faiss
                parsers[script](argv)
    sources = [table.source for table in experiment.tables.values()]
    sources += [source for figure in experiment.figures.values() for source in figure.sources]
    for source in sources:
        command, file = source.split("/")
        assert file in experiment.commands[command].produces


@pytest.mark.compiler
@pytest.mark.parametrize(("dim", "leaf_size"), [(1, 1), (2, 1), (5, 3), (3, 1000)])
def test_the_ball_tree_equals_brute_force_and_visits_the_nodes_of_its_readable_form(dim: int, leaf_size: int) -> None:
    keys, q = torch.randn(150, dim).double(), torch.randn(20, dim).double()
    tree, expected = BallTree(keys, leaf_size, 3), reference.build(keys, leaf_size, 3)
    index, score, visited = tree.search(q, 6)
    check_answer(Ragged(q[None], keys[None], [20], [150]), 6, index[None], score[None])
    assert (tree.num_nodes, tree.depth) == (len(expected.walk()), expected.depth)
    assert visited.tolist() == [reference.search(expected, keys, query, 6)[1] for query in q]


def test_encodings_equal_those_of_torch_geometric() -> None:
    graphs = encodings.DATA["graphs"](np.random.default_rng(0), 4, 500)
    walks = encodings.encode_for_run("RWSE", graphs), encodings.encode_by_transform("RWSE", graphs)
    for ours, expected in zip(*walks, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
    double = [graph.clone() for graph in graphs]
    for graph in double:
        graph.edge_weight = torch.ones(graph.num_edges, dtype=torch.float64)
    vectors = encodings.encode_for_run("LapPE", graphs), encodings.encode_by_transform("LapPE", double)
    for graph, ours, theirs in zip(graphs, *vectors, strict=True):
        pairs = ours.shape[1]
        values = laplacian_eigenpairs(graph.edge_index, graph.num_nodes, pairs + 2)[0].numpy()[1:]
        spaces = np.split(np.arange(pairs + 1), np.flatnonzero(np.diff(values) > 1e-6) + 1)
        for space in (space for space in spaces if space[-1] < pairs):  # the last one may be cut
            left, right = ours[:, space], theirs[:, space]
            np.testing.assert_allclose(left @ left.T, right @ right.T, rtol=0, atol=1e-5)
