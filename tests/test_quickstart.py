"""The README's first run learns, even when it is cut short."""

from __future__ import annotations

import json
from pathlib import Path

import main

ROOT = Path(__file__).parents[1]


def test_the_demo_reaches_90_percent_in_ten_epochs(tmp_path: Path) -> None:
    words = ["out_dir", str(tmp_path), "optim.max_epoch", "10", "train.eval_period", "10"]
    assert main.run(["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), *words]) == 0
    record = json.loads((tmp_path / "digits-kmip" / "0" / "record.json").read_text())
    assert record["best"]["test"]["accuracy"] > 0.9
