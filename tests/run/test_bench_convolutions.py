"""The benchmark of convolutions: a whole quick run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from run.bench import convolutions

from graphgps_kmip.mpnn import summed_convolutions


@pytest.mark.parametrize("layer", convolutions.LAYERS)
def test_ours_takes_the_lists(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = convolutions.LAYERS[layer](16)
    monkeypatch.setattr(type(ours), "propagate", None)  # torch_geometric's way needs it
    with convolutions._lists_everywhere():
        convolutions._pass(ours, torch.randn(3, 16).requires_grad_(), torch.tensor([[0, 1], [2, 0]]))


def test_a_run_times_both_forms_of_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SIZES", {"molecules": (30, 60)})
    least = summed_convolutions.MIN_NUMBERS
    assert convolutions.main(["--quick", "--channels", "16", "--out", str(tmp_path)]) == 0
    assert summed_convolutions.MIN_NUMBERS == least
    (stored,) = tmp_path.glob("*.json")
    rows = json.loads(stored.read_text())["rows"]
    assert [(row["layer"], row["method"]) for row in rows] == [
        (layer, name) for layer in convolutions.LAYERS for name in ("ours", "torch_geometric")
    ]
    for row in rows:
        assert row["cpu_ms"] > 0
        assert not row["list"]
        assert (row["speedup"] == 1) == (row["method"] == "torch_geometric")
