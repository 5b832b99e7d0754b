"""Resuming needs the statistics of every epoch up to the checkpoint, and a checkpoint whose content fits."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphgps_kmip.report import best_epoch, read_run
from graphgps_kmip.task.task import Task
from graphgps_kmip.train import CheckpointError, read_record
from graphgps_kmip.train.checkpoint import read_checkpoint
from tests.train import killed
from tests.train.toy import TASK, read_stats, run

NAN = float("nan")


def interrupted(run_dir: Path, batches: int = 7 * 4 + 1, **options: Any) -> None:
    """Leave a run of 6 epochs that was stopped in the fifth, with checkpoints of four."""
    hook = killed.at_batch(batches, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        run(run_dir, hook, ckpt_clean=False, **options)
    assert (run_dir / "ckpt" / "3.ckpt").exists()
    assert not (run_dir / "ckpt" / "5.ckpt").exists()


def cut(run_dir: Path, split: str, lines: int) -> None:
    path = run_dir / split / "stats.json"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_lost_lines_send_the_run_back_to_the_checkpoint_that_has_all_of_its_own(
    split: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "whole")
    interrupted(tmp_path / "cut")
    cut(tmp_path / "cut", split, 2)
    with caplog.at_level(logging.WARNING):
        run(tmp_path / "cut", auto_resume=True)
    (line,) = [text for text in caplog.messages if "goes back" in text]
    assert f"{split}/stats.json lacks epochs 2, 3" in line
    assert line.endswith("ckpt/1.ckpt, whose statistics are all there")
    for name in ("train", "val", "test"):
        assert read_stats(tmp_path / "cut", name) == read_stats(tmp_path / "whole", name)


def test_where_no_checkpoint_has_its_statistics_the_resume_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "val" / "stats.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"val/stats.json lacks epochs 0, 1, 2 and more.*auto_resume False"):
        run(tmp_path, auto_resume=True)
    with pytest.raises(CheckpointError, match=r"val/stats.json lacks epochs 0, 1.*1\.ckpt"):
        run(tmp_path, auto_resume=True, epoch_resume=1)
    assert contents(tmp_path) == before


def test_a_test_split_that_is_evaluated_at_new_bests_only_lacks_nothing(tmp_path: Path) -> None:
    interrupted(tmp_path, 26, eval_test="best", eval_period=2)  # fewer batches: not every epoch is evaluated
    assert run(tmp_path, auto_resume=True, eval_test="best", eval_period=2)["finished"]


def rewritten(run_dir: Path, number: int = 3, **changes: Any) -> Path:
    path = run_dir / "ckpt" / f"{number}.ckpt"
    torch.save(torch.load(path, weights_only=True) | changes, path)
    return path


def test_an_epoch_beyond_the_statistics_is_not_believed(tmp_path: Path) -> None:
    interrupted(tmp_path)
    path = rewritten(tmp_path, epoch=5)
    with pytest.raises(CheckpointError, match=r"3\.ckpt says that it is of epoch 5"):
        run(tmp_path, auto_resume=True)
    path.rename(path.with_name("5.ckpt"))
    resumed = run(tmp_path, auto_resume=True)
    assert [line["epoch"] for line in read_stats(tmp_path, "train")] == list(range(6))
    assert resumed["finished"]


def test_the_name_of_a_stray_file_may_claim_any_epoch(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (tmp_path / "ckpt" / f"{10**20}.ckpt").touch()
    os.mkfifo(tmp_path / "ckpt" / "4.ckpt")
    assert run(tmp_path, auto_resume=True)["finished"]
    assert {path.name for path in (tmp_path / "ckpt").iterdir() if path.is_file()} == {"5.ckpt"}


def deep(content: dict, *path: Any, value: Any) -> dict:
    key, *rest = path
    return {**content, key: deep(content[key], *rest, value=value) if rest else value}


WRONG: dict[str, Callable[[dict], Any]] = {
    "a list": lambda _: [1, 2],
    "a tensor that is a text": lambda c: deep(c, "model_state", "inner.weight", value="x"),
    "an optimizer state without groups": lambda c: {**c, "optimizer_state": {}},
    "an optimizer of more parameters": lambda c: deep(c, "optimizer_state", "state", 99, value={"step": 1.0}),
    "a moment of another shape": lambda c: deep(c, "optimizer_state", "state", 0, "exp_avg", value=torch.zeros(3, 3)),
    "a schedule of another kind": lambda c: {**c, "scheduler_state": {"T_max": 3}},
    "a schedule with a text": lambda c: deep(c, "scheduler_state", "last_epoch", value="x"),
    "another epoch": lambda c: {**c, "epoch": 2},
    "a best epoch to come": lambda c: deep(c, "best", "epoch", value=99),
    "a best score that the statistics do not show": lambda c: deep(c, "best", "test", "accuracy", value=2.0),
    "generators without a state": lambda c: {**c, "rng": [{"torch": torch.zeros(3)}]},
    "a generator's state of another size": lambda c: {**c, "rng": [{**c["rng"][0], "torch": torch.zeros(3).byte()}]},
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("stopped") / "0"
    interrupted(run_dir)
    return run_dir


@pytest.mark.parametrize("case", WRONG)
def test_a_checkpoint_that_can_be_read_but_has_wrong_content_is_one_line_and_nothing_changes(
    case: str, stopped: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "0"
    shutil.copytree(stopped, run_dir)
    path = run_dir / "ckpt" / "3.ckpt"
    torch.save(WRONG[case](torch.load(path, weights_only=True)), path)
    before = contents(run_dir)
    with pytest.raises(CheckpointError, match=r"3\.ckpt") as error:
        run(run_dir, auto_resume=True)
    assert "\n" not in str(error.value)
    assert any(fix in str(error.value) for fix in ("delete it", "train.auto_resume False", "build the model with"))
    assert contents(run_dir) == before


def scripted(values: list[float], maximize: bool = True) -> Task:
    """Return the toy's task with a metric whose values at the validation split are given."""
    calls = {4: iter(values)}

    def metric(score: torch.Tensor, true: torch.Tensor) -> float:  # noqa: ARG001
        return next(calls[4]) if len(true) == 6 else 0.0  # the toy's validation split has six graphs

    return Task(TASK.name, TASK.loss, TASK.score, {"scripted": metric}, "scripted", maximize)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([NAN, 0.4, NAN, 0.6, NAN, 0.5], 3),
        ([NAN] * 6, 0),
        ([0.1, NAN, NAN, NAN, NAN, NAN], 0),
        ([NAN, NAN, 0.0] * 2, 2),
    ],
)
def test_with_nan_validation_values_checkpoint_record_and_table_choose_the_same_epoch(
    values: list[float], best: int, tmp_path: Path
) -> None:
    record = run(tmp_path, task=scripted(values), ckpt_best=True)
    assert record["best"]["epoch"] == best
    assert read_checkpoint(tmp_path / "ckpt" / "best.ckpt", "toy")["epoch"] == best
    assert best_epoch(read_run(tmp_path), "scripted", "argmax") == best
    assert read_record(tmp_path)["best"]["epoch"] == best
