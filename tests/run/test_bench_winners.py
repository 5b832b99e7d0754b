"""The map of winners: a small one is measured, written and drawn."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from run.bench import winners


def test_a_small_map_is_measured_written_and_drawn(tmp_path: Path) -> None:
    words = ["--n", "50,200", "--dims", "3,10", "--data", "unit", "--backends", "chunked,exact", "--threads", "1"]
    assert winners.main([*words, "--out", str(tmp_path)]) == 0
    (table,) = tmp_path.glob("*.csv")
    rows = list(csv.DictReader(table.open()))
    assert [(row["n"], row["dim"]) for row in rows] == [("50", "3"), ("50", "10"), ("200", "3"), ("200", "10")]
    for row in rows:
        times = {name: float(row[f"{name}_ms"]) for name in ("chunked", "exact")}
        assert row["winner"] == min(times, key=times.get)
    assert table.with_suffix(".png").stat().st_size > 10_000


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="--backends cup: there are tree, cpu"):
        winners.parse(["--backends", "cpu,cup"])
