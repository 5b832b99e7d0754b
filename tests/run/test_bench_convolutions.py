"""The benchmark of convolutions: a whole quick run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run.bench import convolutions

from graphgps_kmip.mpnn import summed_convolutions


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
