from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from graphgps_kmip.results.run_record import read_record
from tests.processes import preloaded
from tests.train import killed
from tests.train.toy import TASK, last_checkpoint, make_loaders, read_stats, run

ROOT = Path(__file__).parents[2]
SIGNALS = [moment.__name__ for moment in killed.SIGNALS]
EVERY_MOMENT = [*(moment.__name__ for moment in killed.MOMENTS), *SIGNALS]


def assert_same(got: object, want: object, where: str = "") -> None:
    """Equal to the last bit, tensors included."""
    if isinstance(want, dict):
        assert got.keys() == want.keys(), where
        for key in want:
            assert_same(got[key], want[key], f"{where}/{key}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for number, pair in enumerate(zip(got, want, strict=True)):
            assert_same(*pair, f"{where}/{number}")
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=0, atol=0, msg=lambda text: f"{where}: {text}")
    else:
        assert got == want, where


def without_times(checkpoint: dict) -> dict:
    best = {
        split: {**stats, "time_epoch": 0, "time_iter": 0}
        for split, stats in checkpoint["best"].items()
        if split in ("train", "val", "test")
    }
    return {**checkpoint, "seconds": 0, "compute_seconds": 0, "best": {**checkpoint["best"], **best}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """The folder of all killed and resumed runs, and for each: exit code, checkpoints left, exit code of the resume."""
    folder = tmp_path_factory.mktemp("killed")
    done = preloaded("-m", "tests.train.killed", str(folder))
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    return folder, {name: [*rest, done.stderr] for name, *rest in lines}


@pytest.mark.parametrize("moment", EVERY_MOMENT)
def test_a_run_killed_at_any_moment_and_resumed_ends_with_the_same_numbers(moment: str, runs: tuple) -> None:
    folder, outcomes = runs
    killed_by, _, resumed, _ = outcomes[moment]
    assert resumed == "0"
    if moment not in SIGNALS:
        assert killed_by == str(-signal.SIGKILL)
    for split in ("train", "val", "test"):
        assert read_stats(folder / moment, split) == read_stats(folder / "uninterrupted", split)
    got, want = last_checkpoint(folder / moment), last_checkpoint(folder / "uninterrupted")
    assert_same(without_times(got), without_times(want))
    record, expected = read_record(folder / moment), read_record(folder / "uninterrupted")
    assert (record["finished"], record["resumes"]) == (True, 1)
    for best in ("epoch", "value"):
        assert record["best"][best] == expected["best"][best]
    assert not list((folder / moment / "ckpt").glob("*.tmp"))
    assert [path.name for path in (folder / moment / "ckpt").iterdir()] == ["5.ckpt"]


@pytest.mark.parametrize(("name", "code"), [("interrupted", "130"), ("terminated_with_an_echo", "143")])
def test_a_signal_saves_the_last_completed_epoch_and_exits_with_its_code(name: str, code: str, runs: tuple) -> None:
    exit_code, checkpoints, _, stderr = runs[1][name]
    assert exit_code == code
    assert checkpoints == "2"  # the signal came in epoch 3, and the period is 100
    lines = [line for line in stderr.splitlines() if f"{name}/ckpt/2.ckpt" in line]
    assert len(lines) == 1
    assert "train.auto_resume True" in lines[0]


def test_a_second_signal_kills_at_once(runs: tuple) -> None:
    assert runs[1]["terminated_twice"][:2] == [str(-signal.SIGTERM), "none"]


def test_the_handlers_of_before_are_back_after_a_stop(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    hook = killed.at_batch(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, hook)
    assert stop.value.code == 130
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not (tmp_path / "ckpt").exists()  # no epoch was completed


def test_a_signal_after_the_last_batch_still_stops_what_comes_after_the_run(tmp_path: Path) -> None:
    hook = killed.at_batch(7, lambda: os.kill(os.getpid(), signal.SIGTERM))  # the last batch of the only epoch
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, hook, max_epoch=1)
    assert stop.value.code == 143
    assert read_record(tmp_path)["finished"]


class ForeignLoader:
    def __init__(self, loader: object) -> None:
        self.batches = list(loader)

    def __iter__(self) -> object:
        return iter([self.batches[i] for i in torch.randperm(len(self.batches)).tolist()])


def test_loaders_that_shuffle_by_the_global_generator_resume_too(tmp_path: Path) -> None:
    loaders = [ForeignLoader(loader) for loader in make_loaders()]
    run(tmp_path / "a", loaders=loaders)
    hook = killed.at_batch(29, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        run(tmp_path / "b", hook, loaders=loaders)
    run(tmp_path / "b", loaders=loaders, auto_resume=True)
    assert read_stats(tmp_path / "b", "train") == read_stats(tmp_path / "a", "train")
    assert_same(last_checkpoint(tmp_path / "b")["model_state"], last_checkpoint(tmp_path / "a")["model_state"])


def test_plateau_and_a_best_epoch_before_the_stop_survive_it(tmp_path: Path) -> None:
    options = {
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        "eval_test": "best",
        "eval_period": 2,
        "lr": 1.0,  # so large that the validation loss rises and the first epochs stay the best
        "max_epoch": 9,
    }
    whole = run(tmp_path / "a", **options)
    hook = killed.at_batch(40, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        run(tmp_path / "b", hook, **options)
    resumed = run(tmp_path / "b", auto_resume=True, **options)
    assert whole["best"]["epoch"] < 5  # else this test says nothing about a best epoch before the stop
    assert resumed["best"]["epoch"] == whole["best"]["epoch"]
    for split in ("train", "val", "test"):
        assert read_stats(tmp_path / "b", split) == read_stats(tmp_path / "a", split)


def test_resuming_at_a_chosen_epoch_drops_what_came_later(tmp_path: Path) -> None:
    run(tmp_path, ckpt_clean=False, max_epoch=4)
    want = read_stats(tmp_path, "train")
    hook = killed.at_batch(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        run(tmp_path, hook, auto_resume=True, epoch_resume=1, ckpt_clean=False, max_epoch=4)
    assert read_stats(tmp_path, "train") == want[:2]
    assert sorted(path.stem for path in (tmp_path / "ckpt").iterdir()) == ["0", "1"]
    run(tmp_path, auto_resume=True, max_epoch=4)
    assert read_stats(tmp_path, "train") == want


def test_without_checkpoints_nothing_is_written_at_a_stop(tmp_path: Path) -> None:
    hook = killed.at_batch(20, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(SystemExit):
        run(tmp_path, hook, enable_ckpt=False, task=TASK)
    assert not (tmp_path / "ckpt").exists()
