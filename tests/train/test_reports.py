from __future__ import annotations

import json
import logging
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from torch_geometric.data import Batch

from graphgps_kmip.common import progress
from graphgps_kmip.common.progress import BatchProgress
from graphgps_kmip.train.reporter import Reporter, TensorBoardWriter, WandbWriter
from graphgps_kmip.train.settings import RunState, TrainSettings
from tests.train.toy import read_stats, run


class FakeRun:
    def __init__(self) -> None:
        self.lines, self.exit_codes = [], []

    def log(self, values: dict, step: int) -> None:
        self.lines.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """A module `wandb` whose only run remembers what it gets, `init` included."""
    fake = FakeRun()

    def init(entity: str, project: str, name: str, config: dict, id: str, resume: str) -> FakeRun:
        fake.init = {"entity": entity, "project": project, "name": name, "config": config, "id": id, "resume": resume}
        return fake

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Error=RuntimeError))
    return fake


def test_wandb_gets_every_split_under_the_names_of_the_config(wandb: FakeRun, tmp_path: Path) -> None:
    run(tmp_path, max_epoch=2, writers=[WandbWriter("team", "digits", "kmip", {"gt.layers": 3}, "id-1")])
    names = {"entity": "team", "project": "digits", "name": "kmip", "id": "id-1", "resume": "allow"}
    assert wandb.init == names | {"config": {"gt.layers": 3}}
    assert [step for step, _ in wandb.lines] == [0, 0, 0, 1, 1, 1]
    assert wandb.lines[1][1]["val/loss"] == read_stats(tmp_path, "val")[0]["loss"]
    assert "train/accuracy" in wandb.lines[0][1]
    assert wandb.exit_codes == [0]


def test_wandb_that_does_not_start_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("permission denied")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Error=RuntimeError))
    with pytest.raises(ValueError, match=r"permission denied.*wandb\.use False"):
        WandbWriter("expand-gnns")


def test_wandb_hears_that_a_run_failed(wandb: FakeRun, tmp_path: Path) -> None:
    def fail(_batch: Batch) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        run(tmp_path, hook=fail, writers=[WandbWriter()])
    assert wandb.exit_codes == [1]


@pytest.mark.parametrize(
    ("module", "make"), [("wandb", WandbWriter), ("torch.utils.tensorboard", lambda: TensorBoardWriter("unused"))]
)
def test_a_writer_that_is_not_installed_says_what_to_install(
    module: str, make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=f"pip install {module.rpartition('.')[2]}"):
        make()


def test_tensorboard_shows_a_resumed_run_without_the_repeated_epochs(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for epochs in (range(4), range(2, 6)):
        writer = TensorBoardWriter(tmp_path)
        for epoch in epochs:
            writer.log("val", {"epoch": epoch, "loss": epoch / 2, "note": "not a number"}, epoch)
        writer.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["val/loss"]
    assert [(event.step, event.value) for event in events.Scalars("val/loss")] == [(e, e / 2) for e in range(6)]


def report(run_dir: Path, seconds: dict[int, float], **options: Any) -> None:
    reporter = Reporter(run_dir, TrainSettings(name="toy", **options), "accuracy")
    for epoch, taken in seconds.items():
        state = RunState(epoch, {"value": 0.875}, seconds=(epoch + 1) * taken, compute_seconds=(epoch + 1) * taken / 2)
        reporter.report({"train": {"epoch": epoch, "loss": 0.25}}, state, taken)


def etas(run_dir: Path) -> list[float]:
    return [json.loads(line)["eta"] for line in (run_dir / "train/stats.json").read_text().splitlines()]


def test_the_eta_counts_the_evaluations_still_to_come(tmp_path: Path) -> None:
    seconds = {0: 30.0} | dict.fromkeys(range(1, 9), 1.0) | {9: 4.0, 19: 4.0, 20: 4.0}  # 0, 9, 19 and 20 are evaluated
    report(tmp_path, seconds, max_epoch=21, eval_period=10)
    *_, at_9, at_19, at_20 = etas(tmp_path)
    assert at_9 == 9 * 1.0 + 2 * 17.0  # epochs 10-18 plain, 19 and 20 evaluated; the median of 30 and 4
    assert (at_19, at_20) == (4.0, 0.0)


def test_the_eta_ends_with_the_seconds_of_computation_that_a_run_has(tmp_path: Path) -> None:
    report(tmp_path, dict.fromkeys(range(5), 4.0), max_epoch=5, max_seconds=6.0)  # 2 of each epoch, half of the clock's
    assert etas(tmp_path) == [8.0, 4.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("seconds", "eta"), [(0.001, "1 s"), (0.4, "1 s"), (0.7, "2 s"), (61.0, "3 min 3 s")])
def test_the_eta_is_never_zero_while_epochs_are_left(
    seconds: float, eta: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        report(tmp_path, dict.fromkeys(range(4), seconds), max_epoch=4)
    first, *_, third, last = caplog.messages
    assert first.endswith(f", ETA {eta}")
    assert ", ETA " in third
    assert "ETA 0" not in third
    assert last.endswith(" s/epoch")  # nothing is left


def test_a_long_epoch_shows_a_bar_with_its_loss_on_a_terminal_and_a_short_one_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(tmp_path / "short", max_epoch=1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    run(tmp_path / "long", max_epoch=2)
    shown = capsys.readouterr().err
    assert re.search(r"epoch 2/2 train .* 3/\?, loss \d\.\d+", shown)
    assert shown.endswith("\r"), "the bar is cleared, and the line of the epoch takes its place"


def test_elsewhere_a_very_long_epoch_has_a_log_line_a_minute(
    capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 25))  # seconds: a batch takes 25
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    with caplog.at_level(logging.INFO), BatchProgress("epoch 1/2 train", range(8)) as bar:
        for number in range(8):
            bar.update(lambda loss=number: loss / 4)
    assert caplog.messages == [
        "epoch 1/2 train: batch 3 of 8, loss 0.5, 2 min 5 s left",
        "epoch 1/2 train: batch 6 of 8, loss 1.25, 50 s left",
    ]
    assert capsys.readouterr().err == ""


def test_elsewhere_there_is_one_line_an_evaluation_and_no_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        report(tmp_path, {0: 2.0, 1: 2.0}, max_epoch=4, eval_period=4)
    assert capsys.readouterr().err == ""
    assert caplog.messages == ["epoch 1/4 toy loss 0.25, best accuracy 0.875, 2.00 s/epoch, ETA 6 s"]
