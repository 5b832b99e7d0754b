from __future__ import annotations

import logging
import sys
import types
from pathlib import Path

import pytest
from torch_geometric.data import Batch

from graphgps_kmip.train import TensorBoardWriter, TrainSettings, WandbWriter
from graphgps_kmip.train.reporter import Bar, Clock
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
    assert wandb.init == {
        "entity": "team",
        "project": "digits",
        "name": "kmip",
        "config": {"gt.layers": 3},
        "id": "id-1",
        "resume": "allow",
    }
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


def test_the_eta_counts_the_evaluations_still_to_come() -> None:
    clock = Clock(TrainSettings(max_epoch=21, eval_period=10))
    clock.add(0, 30.0)  # evaluated, and the first: slow
    for epoch in range(1, 9):
        clock.add(epoch, 1.0)
    clock.add(9, 4.0)  # evaluated
    assert clock.eta(9) == 9 * 1.0 + 2 * 17.0  # epochs 10-18 plain, 19 and 20 evaluated; the median of 30 and 4
    clock.add(19, 4.0)
    assert clock.eta(19) == 4.0
    assert clock.eta(20) == 0.0


def show_two_epochs() -> None:
    settings = TrainSettings(max_epoch=4, eval_period=4, name="toy")
    clock, bar = Clock(settings), Bar(settings, "accuracy", 0)
    for epoch in range(2):
        clock.add(epoch, 2.0)
        bar.show(epoch, 0.25, 0.875, clock)
    bar.close()


@pytest.mark.parametrize(("seconds", "eta"), [(0.001, "1 s"), (0.4, "1 s"), (0.7, "2 s"), (61.0, "3 min 3 s")])
def test_the_eta_is_never_zero_while_epochs_are_left(
    seconds: float, eta: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = TrainSettings(max_epoch=4, eval_period=1, name="toy")
    clock, bar = Clock(settings), Bar(settings, "accuracy", 0)
    with caplog.at_level(logging.INFO):
        for epoch in range(4):
            clock.add(epoch, seconds)
            bar.show(epoch, 0.25, 0.875, clock)
    first, *_, third, last = (record.getMessage() for record in caplog.records)
    assert first.endswith(f", ETA {eta}")
    assert ", ETA " in third
    assert "ETA 0" not in third
    assert last.endswith(" s/epoch")  # nothing is left


def test_on_a_terminal_there_is_one_bar(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_two_epochs()
    shown = capsys.readouterr().err
    assert "2/4 toy loss 0.25, best accuracy 0.875, 2.00 s/epoch, ETA 4 s" in shown
    assert shown.count("\n") == 1


def test_elsewhere_there_is_one_line_an_evaluation_and_no_bar(
    capsys: pytest.CaptureFixture, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        show_two_epochs()
    assert capsys.readouterr().err == ""
    assert [record.getMessage() for record in caplog.records] == [
        "epoch 1/4 toy loss 0.25, best accuracy 0.875, 2.00 s/epoch, ETA 6 s"
    ]
