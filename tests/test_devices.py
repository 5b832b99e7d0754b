"""Several processes: the same numbers as one process with the same global batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import main
from tests.processes import preloaded

ROOT = Path(__file__).parents[1]
# Layer norm and no dropout: with batch norm over CPU processes, or with dropout, the numbers must differ.
WORDS = """gt.layer_type None+kMIP gt.batch_norm False gt.layer_norm True gt.dropout 0.0 gt.attn_dropout 0.0 gt.layers 1
optim.max_epoch 1 train.batch_size 50 num_threads 1 accelerator cpu""".split()


def stats(tmp_path: Path, devices: int) -> list[dict[str, float]]:
    out_dir = tmp_path / str(devices)
    argv = ["--cfg", "configs/quickstart/digits-kmip.yaml", *WORDS, "devices", str(devices), "out_dir", str(out_dir)]
    if devices == 1:
        assert main.run(argv) == 0
    else:  # which starts the others as from a shell, each with its own imports
        result = preloaded("main.py", *argv)
        assert result.returncode == 0, result.stderr
    run = out_dir / "digits-kmip" / "0"
    return [json.loads((run / split / "stats.json").read_text().splitlines()[-1]) for split in ("train", "val", "test")]


@pytest.mark.thorough  # the second process imports everything, as it does from a shell
def test_two_processes_give_the_metrics_of_one(tmp_path: Path) -> None:
    for single, double in zip(stats(tmp_path, 1), stats(tmp_path, 2), strict=True):
        for key in ("loss", "accuracy", "f1", "auc"):
            # float32 sums in another order, over one epoch of Adam
            assert double[key] == pytest.approx(single[key], rel=1e-3, abs=1e-3), key
