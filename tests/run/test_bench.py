"""The benchmark as it is run: every row comes out, and trouble is a row."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from run.bench import attention, bench_records, layer
from run.bench.harness import Bounds, MethodProcess, measure

from graphgps_kmip.native import instruction_sets, unavailable_reason
from graphgps_kmip.registry import entries

WORDS = ["--setting", "search", "--n", "100:200", "--threads", "1", "--repeats", "5", "--limit", "60"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a small run of the searches."""
    folder = tmp_path_factory.mktemp("bench")
    assert attention.main([*WORDS, "--methods", "matmul*,ours: exact", "--out", str(folder)]) == 0
    (path,) = folder.glob("*.json")
    return path


def test_a_small_run_writes_every_row_with_a_finite_median(stored: Path) -> None:
    rows = json.loads(stored.read_text())["rows"]
    names = ["matmul+topk", "ours: exact"]
    assert [(row["n"], row["method"]) for row in rows] == [(n, name) for n in (100, 200) for name in names]
    for row in rows:
        assert row["status"] == "ok"
        assert math.isfinite(row["total_ms"])
        assert 0 < row["total_min_ms"] <= row["total_ms"] <= row["total_max_ms"]
        assert (row["repeats"], row["recall"]) == (5, 1.0)
    assert stored.name.startswith("attention-search-")


@pytest.mark.parametrize(
    ("method", "limit", "status"),
    [("matmul+topk", 600, "out of memory"), ("ours: chunked", 0.5, "time limit")],  # 360 GB; minutes
    ids=["memory", "time"],
)
def test_out_of_memory_and_time_are_rows(method: str, limit: float, status: str) -> None:
    cell = {"bench": "attention", "setting": "search", "data": "gaussian", "dim": 10, "k": 10, "heads": 1, "n": 300_000}
    cell |= {"device": "cpu", "threads": 1, "method": method}
    (row,) = measure([[cell]], Bounds(repeats=5, limit=limit))
    assert row["status"] == status


def test_a_process_that_is_killed_is_a_row() -> None:
    common = {"bench": "attention", "setting": "search", "data": "gaussian", "dim": 4, "k": 3, "heads": 1, "n": 50}
    cell = common | {"device": "cpu", "threads": 1, "method": "matmul+topk"}
    process = MethodProcess(cell, Bounds(repeats=5, limit=60), None, {})
    process.once()
    process.process.kill()
    process.process.join()
    process.once()
    assert process.row()["status"] == "out of memory (the process was killed)"
    assert not process.goes_on


FEW = ["kMIP", layer.SPARSE, "GECO", "GRIT", "sL2"]


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "all"])
def test_every_registered_attention_is_timed_in_a_whole_layer(few: bool, tmp_path: Path) -> None:
    words = ["--n", "40", "--batch", "2x10", "--dims", "8", "--heads", "2", "--repeats", "5", "--threads", "1"]
    methods = FEW if few else layer.names()  # now: other tests register attentions of their own
    if few:
        words += ["--methods", ",".join(FEW)]
    assert layer.main([*words, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("layer-*.json")
    rows = bench_records.read(path)["rows"]
    assert sorted(row["method"] for row in rows) == sorted(2 * methods)
    assert set(entries("attention")) < set(layer.names())
    for row in rows:
        if row["method"] in (*FEW, "Transformer"):
            assert row["status"] == "ok"
            assert min(row["forward_ms"], row["backward_ms"]) > 0


def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["attention.py", "--data", "gausian"])
    with pytest.raises(SystemExit) as ended:
        bench_records.run(attention.main)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --data gausian: unknown, choose gaussian")
    assert error.count("\n") == 1


@pytest.mark.skipif(unavailable_reason("kmip_search") is not None, reason="no C compiler")
def test_one_run_measures_the_kernel_on_each_instruction_set_of_the_cpu(tmp_path: Path) -> None:
    assert attention.main([*WORDS, "--n", "100", "--methods", "ours: cpu (*", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    rows = {row["method"]: row for row in bench_records.read(path)["rows"]}
    names = instruction_sets.runnable()
    assert [rows[f"ours: cpu ({name})"]["isa"] for name in names] == names
    assert all(row["recall"] == 1 for row in rows.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "nobody"], "--methods nobody: no method of this name"),
        (["--data", "batch:2x0x1"], "or batch:GRAPHSxNODESxHEADS"),
        (["--data", "batch:2x5x3", "--heads", "2"], "--heads: the data batch:2x5x3 has 3"),
        (["--data", "descending", "--dims", "1"], "two directions"),
        (["--limit", "0"], "--limit must be positive"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention.main(words)
