"""The example that exports the model of a finished run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.processes import preloaded

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough  # a training and a process for the example
def test_the_exported_model_of_a_run_predicts_what_the_model_does(tmp_path: Path) -> None:
    argv = "optim.max_epoch 1 gt.layers 1 train.batch_size 256 num_threads 1".split()
    config = str(ROOT / "configs/quickstart/digits-kmip.yaml")
    trained = preloaded("main.py", "--cfg", config, *argv, "out_dir", tmp_path, cwd=ROOT)
    assert trained.returncode == 0, trained.stderr[-2000:]
    run, out = tmp_path / "digits-kmip" / "0", tmp_path / "model.pt2"
    done = preloaded("examples/export/export_run.py", run, out, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    match = re.search(r"predictions of 360 graphs differ by (\S+)$", done.stdout.strip())
    assert float(match[1]) < 1e-5
