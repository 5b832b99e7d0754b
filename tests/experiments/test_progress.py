"""What is to be seen while jobs run."""

from __future__ import annotations

import io
import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphgps_kmip.experiments import job_runner as progress
from graphgps_kmip.experiments.job_process import Running
from graphgps_kmip.experiments.job_runner import Durations, Epochs, Progress, Setup, epochs, run_jobs, to_go
from graphgps_kmip.experiments.jobs import Job, plan_jobs
from tests.experiments.project import experiment, make_project, training


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return plan_jobs(
        {"A": experiment("A", training("GCN", seeds=2), training("Bad", do="fail"))}, ["A"], make_project(tmp_path)
    )


def running(job: Job, seconds: float) -> Running:
    return Running(job, SimpleNamespace(), io.StringIO(), 0, 0, time.monotonic() - seconds)


def write_epoch(job: Job, age: float) -> None:
    stats = job.path / "train/stats.json"
    stats.parent.mkdir(parents=True)
    stats.write_text("".join(json.dumps({"epoch": epoch, "eta": 90.0}) + "\n" for epoch in (0, 1)))
    os.utime(stats, (time.time() - age,) * 2)
    (job.path / "config.yaml").write_text("optim:\n  base_lr: 0.1\n  max_epoch: 30\n")


def test_epochs_are_read_from_what_the_run_writes(jobs: list[Job]) -> None:
    assert epochs(running(jobs[0], 60)) is None
    write_epoch(jobs[0], age=2)
    found = epochs(running(jobs[0], 60))
    assert (found.done, found.of) == (2, 30)
    assert found.to_go == pytest.approx(88, abs=1)


@pytest.mark.parametrize(
    ("done", "eta", "age", "to_go"),
    [
        (20, 100.0, 4.0, 96.0),  # 10 epochs of 10 s are left
        (20, 100.0, 50.0, 90.0),  # the one under way is overdue, nine are still to come
        (29, 10.0, 50.0, 0.0),  # the last one is overdue
        (30, 0.0, 1.0, 0.0),
    ],
)
def test_an_epoch_that_takes_long_leaves_the_time_of_those_after_it(
    done: int, eta: float, age: float, to_go: float
) -> None:
    assert Epochs.after(done, 30, eta, age) == Epochs(done, 30, to_go)


def test_the_block_never_says_0_s_while_something_runs(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    reached = {jobs[0]: Epochs(29, 30, 0.2), jobs[1]: Epochs(29, 30, 0.0), jobs[2]: Epochs(30, 30, 0.0)}
    monkeypatch.setattr(progress, "epochs", lambda one: reached[one.job])
    shown = Progress(io.StringIO())
    assert shown.lines([running(job, 10) for job in jobs], []) == [
        "A GCN seed 0  epoch 29 of 30, 1 s to go",
        "A Bad seed 0  epoch 29 of 30, longer than expected",
        "A GCN seed 1  epoch 30 of 30, saving its results",
        "3 running; about 1 s to go",
    ]
    assert shown.lines([running(jobs[2], 10)], [])[-1] == "1 running; time to go not known yet"
    monkeypatch.setattr(progress, "epochs", lambda _: None)
    shown.durations.add(jobs[0].group, {"wall_time": 5.0})
    assert shown.lines([running(jobs[0], 10)], []) == [
        "A GCN seed 0  for 10 s, longer than expected",
        "1 running; time to go not known yet",
    ]


def test_epochs_of_an_earlier_attempt_are_not_those_of_this_one(jobs: list[Job]) -> None:
    write_epoch(jobs[0], age=30)
    assert epochs(running(jobs[0], 10)) is None


def test_the_block_has_a_line_for_each_job_and_one_for_all(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Progress(io.StringIO(), parallel=2)
    shown.durations.add(jobs[0].group, {"wall_time": 100.0})
    shown.counts |= {"done": 5, "not done": 1}
    monkeypatch.setattr(progress, "epochs", lambda one: Epochs(2, 30, 60.0) if one.job is jobs[0] else None)
    assert shown.lines([running(jobs[0], 10), running(jobs[1], 40)], [jobs[2]]) == [
        "A GCN seed 0  epoch 2 of 30, 1 min to go",
        "A Bad seed 0  for 40 s, 1 min to go",
        "5 done, 1 not done, 2 running, 1 waiting; about 1 min 50 s to go",
    ]


def test_the_block_is_redrawn_in_place_and_cut_to_the_window(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    monkeypatch.setattr(progress, "REDRAW", 0.0)
    screen = Terminal()
    shown = Progress(screen)
    shown.show([running(jobs[0], 10)], [])
    assert screen.getvalue() == "A GCN seed 0  for 1\n1 running; time to \n"
    shown.show([running(jobs[0], 10)], [])
    shown.say("failed  x")
    shown.close()
    assert screen.getvalue().count("\x1b[2F\x1b[J") == 2
    assert screen.getvalue().endswith("\x1b[2F\x1b[Jfailed  x\n")


def test_elsewhere_there_is_a_line_when_a_job_begins_or_ends(jobs: list[Job], tmp_path: Path) -> None:
    text = io.StringIO()
    run_jobs(jobs, Setup(tmp_path), Progress(text))
    lines = [re.sub(r"\d+ s", "0 s", line) for line in text.getvalue().splitlines()]
    assert lines[:2] == ["start   A GCN seed 0", "done    A GCN seed 0 (0 s)"]
    assert lines[2:4] == [
        "start   A Bad seed 0",
        f"failed  A Bad seed 0: no such dataset 'x'; log: {tmp_path}/results/set/bad/0.log",
    ]
    assert not any("\x1b" in line for line in lines)


def test_elsewhere_a_report_comes_every_minute(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    text, shown = io.StringIO(), None
    shown = Progress(text)
    shown.show([running(jobs[0], 10)], [])
    assert text.getvalue() == ""
    monkeypatch.setattr(progress, "REPORT", 0.0)
    shown.show([running(jobs[0], 10)], [])
    assert text.getvalue().splitlines()[0] == "A GCN seed 0  for 10 s"


def test_time_to_go_is_that_of_the_same_config_else_of_all_that_is_done(jobs: list[Job]) -> None:
    durations = Durations()
    assert durations.expected(jobs[0]) is None
    durations.add("another", {"seconds": 10.0})
    assert durations.expected(jobs[0]) == 10
    durations.add(jobs[0].group, {"wall_time": 50.0})
    durations.add(jobs[0].group, {"wall_time": 70.0})
    assert durations.expected(jobs[0]) == 60
    assert durations.left(running(jobs[0], 100)) == 0
    durations.add("slow to start", {"wall_time": 1.0}, took=20.0)
    assert durations.seconds["slow to start"] == [20]


def test_all_are_done_when_the_slots_have_worked_off_what_is_left() -> None:
    assert to_go([None], [], 2, guess=0) is None
    assert to_go([40.0, 20.0], [60.0, None], 2, guess=30) == 75
    assert to_go([100.0], [10.0], 4, guess=0) == 100


def test_waiting_jobs_are_expected_to_take_as_long_as_a_running_one_from_begin_to_end(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "epochs", lambda _: Epochs(29, 30, 2.0))
    *_, last = Progress(io.StringIO()).lines([running(jobs[0], 58)], jobs[1:])
    assert last.endswith("2 waiting; about 2 min 2 s to go")
