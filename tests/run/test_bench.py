"""The benchmark as it is run: every row comes out, trouble is a row, and a stored run is compared with."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from run.bench import attention, bench_records, layer, search_methods
from run.bench.harness import Bounds, MethodProcess, measure

from graphgps_kmip.native import instruction_sets, unavailable_reason
from graphgps_kmip.registry import entries
from tests.processes import python

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
    names = ["matmul+topk", search_methods.FROZEN, "ours: exact"]
    assert [(row["n"], row["method"]) for row in rows] == [(n, name) for n in (100, 200) for name in names]
    for row in rows:
        assert row["status"] == "ok"
        assert math.isfinite(row["total_ms"])
        assert 0 < row["total_min_ms"] <= row["total_ms"] <= row["total_max_ms"]
        assert (row["repeats"], row["recall"]) == (5, 1.0)
    with stored.with_suffix(".csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert stored.name.startswith("attention-search-")


@pytest.mark.parametrize(
    ("method", "limit", "status"),
    [("matmul+topk", 600, "out of memory"), (search_methods.FROZEN, 0.5, "time limit")],  # 360 GB; minutes
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


FEW = ["kMIP", layer.FROZEN, layer.SPARSE, "GECO", "GRIT", "sL2"]


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["few", "all"])
def test_every_registered_attention_is_timed_in_a_whole_layer(few: bool, tmp_path: Path) -> None:
    words = ["--n", "40", "--batch", "2x10", "--dims", "8", "--heads", "2", "--repeats", "5", "--threads", "1"]
    methods = FEW if few else layer.names()  # now: other tests register attentions of their own
    if few:
        words += ["--methods", ",".join(FEW[:1] + FEW[2:])]  # the frozen one is always there
    assert layer.main([*words, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("layer-*.json")
    rows = bench_records.read(path)["rows"]
    assert sorted(row["method"] for row in rows) == sorted(2 * methods)
    assert set(entries("attention")) < set(layer.names())
    for row in rows:
        if row["method"] in (*FEW, "Transformer"):
            assert row["status"] == "ok"
            assert min(row["forward_ms"], row["backward_ms"]) > 0


def compared(new: Path, old: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what is printed."""
    code = bench_records.compare(bench_records.read(new), bench_records.read(old))
    return code, capsys.readouterr().out


def test_a_run_compared_with_itself_has_no_regression(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(stored, stored, capsys) == (0, "\ncompared with the stored run: 4 rows, 0 worse\n")


def test_a_slower_row_and_a_lost_row_are_regressions(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = bench_records.read(stored)
    rows = {(row["n"], row["method"]): row for row in record["rows"]}
    rows[200, "ours: exact"]["total_ms"] *= 1.4
    rows[100, "matmul+topk"] |= {"status": "out of memory"}
    for row in record["rows"]:
        row["total_ms"] *= 10  # a slower machine: no regression
    doctored = tmp_path / "doctored.json"
    doctored.write_text(json.dumps(record))
    code, printed = compared(doctored, stored, capsys)
    assert code == 1
    assert "4 rows, 2 worse" in printed
    assert "ours: exact (search, gaussian, n = 200): 1.40 x slower" in printed
    assert "matmul+topk (search, gaussian, n = 100): out of memory (had a result)" in printed


def test_runs_without_a_common_row_are_not_compared(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = bench_records.read(stored)
    (tmp_path / "other.json").write_text(json.dumps(record | {"rows": []}))
    assert compared(stored, tmp_path / "other.json", capsys)[0] == 2


def test_records_of_earlier_versions_are_read(stored: Path, tmp_path: Path) -> None:
    old = stored.read_text().replace('"method":', '"contestant":').replace("_passes_ms", "_turns_ms")
    (tmp_path / "old.json").write_text(old)
    assert bench_records.read(tmp_path / "old.json")["rows"] == bench_records.read(stored)["rows"]


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


@pytest.mark.thorough  # new processes import everything
@pytest.mark.skipif("avx2" not in instruction_sets.runnable(), reason="no AVX2")
def test_a_run_on_fewer_instructions_says_so_of_the_kernels_and_of_torch(tmp_path: Path) -> None:
    words = ["--setting", "search", "--n", "100", "--methods", "ours: cpu", "--threads", "1", "--repeats", "1"]
    done = python("-m", "run.bench.attention", *words, "--isa", "avx2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    machine = bench_records.read(path)["machine"]
    assert machine["isa"] in ("avx2", None)  # None: no C compiler
    assert machine["torch_isa"] == "AVX2"
    assert ", avx2, sgemm" in done.stdout or machine["isa"] is None


@pytest.mark.skipif(unavailable_reason("kmip_search") is not None, reason="no C compiler")
def test_one_run_measures_the_kernel_on_each_instruction_set_of_the_cpu(tmp_path: Path) -> None:
    assert attention.main([*WORDS, "--n", "100", "--methods", "ours: cpu (*", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    rows = {row["method"]: row for row in bench_records.read(path)["rows"]}
    names = instruction_sets.runnable()
    assert [rows[f"ours: cpu ({name})"]["isa"] for name in names] == names
    assert all(row["recall"] == 1 for row in rows.values())


def test_instructions_that_the_cpu_does_not_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(instruction_sets.VARIABLE, "auto")  # back to this at the end
    monkeypatch.setattr(instruction_sets, "_cpu_flags", frozenset)
    with pytest.raises(ValueError, match="^--isa avx2: this CPU does not have it, allowed are auto"):
        attention.main(["--isa", "avx2"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "nobody"], "--methods nobody: no method of this name"),
        (["--data", "batch:2x0x1"], "or batch:GRAPHSxNODESxHEADS"),
        (["--data", "batch:2x5x3", "--heads", "2"], "--heads: the data batch:2x5x3 has 3"),
        (["--data", "descending", "--dims", "1"], "two directions"),
        (["--compare", "nowhere.json"], "cannot be read"),
        (["--limit", "0"], "--limit must be positive"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention.main(words)
