"""A run to go on from, for the tests of pretrained parameters and of train modes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import main
from tests.test_main import DIGITS, SHORT

# One epoch changes the parameters, and is saved, once.
FAST = ["train.ckpt_period", "1", "train.ckpt_best", "False", "optim.num_warmup_epochs", "0"]


def kill(*_: object) -> None:
    raise KeyboardInterrupt


def train_earlier(out: Path, *argv: str) -> Path:
    assert main.run(["--cfg", DIGITS, "out_dir", str(out), *SHORT, *FAST, *argv]) == 0
    return out / "digits-kmip"


def after(folder: Path, mode: str, *argv: str) -> list[str]:
    pretrained = ["pretrained.dir", str(folder), "pretrained.reset_prediction_head", "False"]
    return [*SHORT, *pretrained, "train.mode", mode, *argv]


def lines(run_dir: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / split / "stats.json").read_text().splitlines()]
