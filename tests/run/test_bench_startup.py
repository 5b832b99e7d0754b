"""The benchmark of start-up: what it divides by what, what it counts, and what it prints and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from run.bench import startup
from run.bench.startup import Code, Seconds

THIS, BEFORE = Code("this", Path("a")), Code("before", Path("b"))


def test_medians_of_the_counted_passes_are_divided_by_those_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {("lib", "a"): [90, 2, 2, 4], ("start", "a"): [70, 3, 9, 5], ("start", "b"): [80, 8, 6, 7]}
    order = []

    def timed(start: str, root: Path, environment: Mapping[str, str]) -> tuple[Seconds, str]:
        assert (environment["PYTHONPATH"], environment["OMP_NUM_THREADS"]) == (str(root), "2")
        assert "PYTHONDONTWRITEBYTECODE" not in environment
        order.append((start, str(root)))
        return Seconds(times[start, str(root)].pop(0), 1.0), "ok"

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(startup, "STARTS", {"lib": "lib", "start": "lib"})
    monkeypatch.setattr(startup, "timed", timed)
    rows = startup.measure(["start"], [THIS, BEFORE], repeats=3, threads=2)
    assert order == [("lib", "a"), ("start", "a"), ("start", "b")] * 4
    assert [(row["start"], row["code"], row["cpu_s"], row["cpu_ratio"]) for row in rows] == [
        ("lib", "", 2, 1),
        ("start", "this", 5, 2.5),
        ("start", "before", 7, 3.5),
    ]


def test_a_process_with_another_exit_code_is_named_and_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup, "STARTS", {"pass": "pass", "exit(2)": "pass", "exit(3)": "pass"})
    monkeypatch.setattr(startup, "EXIT_CODES", {"exit(2)": 2})
    words = ["--repeats", "1", "--out", str(tmp_path)]
    assert startup.main([*words, "--only", "exit(2)"]) == 0
    assert startup.main(words) == 1
    assert "error: exit code 3" in capsys.readouterr().out
    *_, last = sorted(tmp_path.glob("startup-*.json"))
    rows = json.loads(last.read_text())["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok", "error: exit code 3"]
    assert all(row["cpu_s"] > 0 and len(row["cpu_passes"]) == 1 for row in rows)


def test_what_is_no_start_and_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--only import numpy: fits nothing"):
        startup.parse(["--only", "import numpy"])
    with pytest.raises(ValueError, match="no checkout, it has no main.py"):
        startup.parse(["--before", str(tmp_path)])
