"""The README's first run learns, even when it is cut short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import main

ROOT = Path(__file__).parents[1]


@pytest.mark.thorough
def test_the_demo_reaches_90_percent_in_ten_epochs(tmp_path: Path) -> None:
    argv = ["out_dir", str(tmp_path), "optim.max_epoch", "10", "train.eval_period", "10"]
    assert main.run(["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), *argv]) == 0
    record = json.loads((tmp_path / "digits-kmip" / "0" / "record.json").read_text())
    assert record["best"]["test"]["accuracy"] > 0.9


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    """Exactly on the processor that it names; others round otherwise, and learn a model a point better or worse."""
    assert main.run(["--cfg", str(ROOT / "configs/quickstart/digits-kmip.yaml"), "out_dir", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "digits-kmip" / "0" / "record.json").read_text())
    shown = re.search(r"test accuracy +([\d.]+) %.*\n.*\n  parameters +([\d,]+)\n", (ROOT / "README.md").read_text())
    tolerance = 0.06 if "Intel(R) Xeon" in record["hardware"]["cpu"] else 1.5
    assert float(shown[1]) == pytest.approx(100 * record["best"]["test"]["accuracy"], abs=tolerance)
    assert shown[2] == f"{record['params']:,}"
