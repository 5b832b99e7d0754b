"""The benchmark of trees: fitted curves, and a whole quick run on small sizes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from run.bench import tree

from graphgps_kmip.report.figures import ball_tree_growth as ball_tree

SIZES = (100, 1000, 3162, 10_000, 31_623)


def test_the_fit_of_times_finds_a_power_and_leaves_out_small_sizes() -> None:
    rows = [{"n": n, "seconds": 1.0 if n < 1000 else 2e-6 * n**1.5} for n in SIZES]
    power, log_linear = ball_tree.fits(rows, "seconds")
    assert power["a"] == pytest.approx(2e-6)
    assert power["b"] == pytest.approx(1.5)
    assert power["r2"] == pytest.approx(1)
    assert log_linear["r2"] < 0.99


def test_the_fit_of_visited_nodes_tells_logarithmic_growth() -> None:
    rows = [{"n": n, "visited": 7 * math.log(n) - 3} for n in SIZES]
    power, logarithm = ball_tree.fits(rows, "visited")
    assert (logarithm["a"], logarithm["b"], logarithm["r2"]) == pytest.approx((7, -3, 1))
    assert power["r2"] < 0.999


@pytest.mark.compiler
def test_a_run_writes_nodes_times_fits_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(tree, "QUICK", {"sizes": [50, 100, 200], "queries": 20, "repeats": {"nodes": 2, "time": 2}})
    words = ["--quick", "--backends", "ball_tree,cpu", "--threads", "1", "--out", str(tmp_path)]
    assert tree.main(words) == 0
    (stored,) = tmp_path.glob("*.json")
    record = json.loads(stored.read_text())
    nodes = [row for row in record["rows"] if row["part"] == "nodes"]
    assert {row["dim"] for row in nodes} == set(tree.DIMS["nodes"])
    assert all(1 <= row["visited"] <= 2 * row["n"] for row in nodes)
    assert {row["contestant"] for row in record["rows"] if row["part"] == "time"} == {"ball_tree", "cpu"}
    assert len(list(tmp_path.glob("*.png"))) == 2
    assert "a log N + b" in capsys.readouterr().out


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="--backends treee: there are ball_tree, tree, cpu"):
        tree.parse(["--backends", "cpu,treee"])
