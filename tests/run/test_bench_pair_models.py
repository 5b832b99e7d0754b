"""The benchmark of networks over pairs: sizes, rows, table of P-T10."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from run.bench import bench_records, pair_models
from run.bench.pair_models import GPS, GRIT, PPGT, SHAPES, sizes_of


def test_sizes_have_the_mean_and_the_spread_of_the_data_sets() -> None:
    for name, shape in SHAPES.items():
        sizes = sizes_of(shape)
        mean, std, least, largest = shape.sizes
        assert len(sizes) == shape.graphs
        assert abs(np.mean(sizes) / mean - 1) < 0.03
        assert abs(np.std(sizes) / std - 1) < (0.1 if shape.graphs > 8 else 0.25), name
        assert least <= min(sizes) <= max(sizes) <= largest


def test_a_run_writes_a_row_for_each_network_and_the_cells_of_the_experiment(
    tmp_path: Path,
) -> None:
    words = ["--data", "tiny", "--repeats", "3", "--threads", "1", "--out", str(tmp_path / "out")]
    assert pair_models.main([*words, "--table", str(tmp_path / "table.json")]) == 0
    (path,) = (tmp_path / "out").glob("*.json")
    rows = {row["method"]: row for row in bench_records.read(path)["rows"]}
    assert list(rows) == pair_models.NAMES
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows[PPGT]["time_of_grit"] == pytest.approx(rows[PPGT]["total_ms"] / rows[GRIT]["total_ms"])
    content = json.loads((tmp_path / "table.json").read_text())
    assert set(content["cells"]) == {PPGT, GRIT, GPS}
    assert len(content["cells"][PPGT]["step_time"]) == 3
    assert content["sample"] is True


def test_a_table_without_its_data_is_refused() -> None:
    with pytest.raises(ValueError, match="--table needs --data peptides"):
        pair_models.parse(["--data", "zinc", "--table", "x.json"])
