"""The benchmark of layer-wise batches, on small graphs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from run.bench import layer_batches


def test_a_run_measures_each_method_and_an_epoch(tmp_path: Path) -> None:
    words = ["--nodes", "2000", "--train", "100", "--batch-size", "30", "--layers", "2", "--repeats", "1"]
    assert layer_batches.main([*words, "--threads", "1", "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("*.json")
    *draws, epoch = json.loads(stored.read_text())["rows"]
    assert {row["method"] for row in draws} >= {"lexsort", "numpy", "copy"}
    assert all(row["vs_lexsort"] > 0 for row in draws)
    assert epoch["batches"] == 4
    assert 30 < epoch["rows"] <= 30 * 36
    assert epoch["peak_mib"] > epoch["anon_mib"]


def test_the_baseline_draws_as_many_edges_of_each_node() -> None:
    layer = layer_batches.random_layer(50, 9, 0)
    ids = layer_batches.by_sorting(layer, 4)
    assert len(ids.unique()) == len(ids)
    assert ((ids // 9).bincount() == 4).all()
    torch.testing.assert_close(layer.score.view(50, 9).sum(1), torch.ones(50))
