"""The benchmark of the low-width method on one large graph, on a small one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run.bench import low_width_scale


def test_every_part_of_both_stages_and_every_layer_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def here(work: Callable[..., Any], *given: Any, threads: int = 1) -> tuple[Any, float]:  # noqa: ARG001
        return work(*given), 1e6

    monkeypatch.setattr(low_width_scale, "in_process", here)  # a process takes seconds to start
    words = ["--nodes", "1500", "--features", "9", "--batch-sizes", "8,32", "--steps", "2", "--layer-nodes", "300"]
    assert low_width_scale.main([*words, "--repeats", "1", "--threads", "1", "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*.json")
    rows = json.loads(stored.read_text())["rows"]
    parts = {row["part"]: row for row in rows if row["part"] not in ("layers", "sparse")}
    assert list(parts) == ["expander", "estimator", "scores"]
    assert parts["estimator"]["edges"] == parts["scores"]["edges"] == 1500 * 11 + parts["expander"]["edges"]
    few, more = (row for row in rows if row["part"] == "sparse")
    assert 8 < few["rows"] < more["rows"] <= 1500
    assert few["epoch_s"] > 20 * few["seconds"]  # some 750 training nodes
    assert all(0 < row["anon_mib"] < 1e6 for row in rows if row["part"] != "layers")
    speedup = {row["method"]: row["speedup"] for row in rows if row["part"] == "layers"}
    assert speedup["in-degree 6"] == 1
    assert len(speedup) == 5
    edges = {row["method"]: row["edges"] for row in rows if row["part"] == "layers"}
    assert (edges["in-degree 6"], edges["Exphormer, edge list"]) == (300 * 6, 300 * 41)


@pytest.mark.thorough
def test_the_memory_of_a_process_is_seen_from_outside(tmp_path: Path) -> None:
    _, small = low_width_scale.in_process(low_width_scale.write_graph, tmp_path, 10, 4)
    _, large = low_width_scale.in_process(low_width_scale.write_graph, tmp_path, 200_000, 200)
    assert 160 < large - small < 1000  # MiB; the features alone are 153
