"""Ctrl-C and kills leave everything resumable."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from graphgps_kmip.common import signals
from graphgps_kmip.experiments.job_process import start, take
from graphgps_kmip.experiments.job_runner import JobsStopped, Outcome, Setup, run_jobs
from graphgps_kmip.experiments.jobs import Job, Place, plan_jobs
from graphgps_kmip.experiments.run_status import State, failure_file
from tests.experiments.project import command, experiment, make_project, order, training
from tests.processes import wait_for


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_project(tmp_path)


def waiting_jobs(place: Place, seeds: int = 1) -> list[Job]:
    """Trainings that do two of four epochs and wait for the file `go`."""
    return plan_jobs({"A": experiment("A", training("GCN", seeds=seeds, do="wait"))}, ["A"], place)


def lines_of(job: Job) -> list[str]:
    file = job.path / "train/stats.json"
    return file.read_text().splitlines() if file.exists() else []


def stopped_by(jobs: list[Job], place: Place, when: Callable[[], bool], *signals: int) -> JobsStopped:
    """Run jobs, and send this process signals when something holds."""

    def send() -> None:
        for signum in signals:
            wait_for(when)
            os.kill(os.getpid(), signum)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(JobsStopped) as stopped:
        run_jobs(jobs, Setup(place.root))
    thread.join()
    return stopped.value


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_job_begins_no_other_and_leaves_no_failure(place: Place, signum: int) -> None:
    jobs = waiting_jobs(place, seeds=2)
    before = signal.getsignal(signum)
    stopped = stopped_by(jobs, place, lambda: len(lines_of(jobs[0])) == 2, signum)
    assert stopped.signum == signum
    assert signal.getsignal(signum) is before
    assert [one.outcome for one in stopped.results] == [Outcome.STOPPED] * 2
    assert [job.status().state for job in jobs] == [State.INTERRUPTED, State.MISSING]
    assert not failure_file(jobs[0].path).exists()


def test_a_job_hears_the_signal_where_the_runner_has_it_ignored(place: Place) -> None:
    """As in the background of a script: SIGTERM stops the runner, which sends SIGINT on."""
    code = "import time\nfrom pathlib import Path\nPath('up').touch()\ntime.sleep(20)\nPath('slept').touch()\n"
    (place.root / "sleeper.py").write_text(code)
    jobs = plan_jobs({"A": experiment("A", commands=(command("look", run="sleeper.py"),))}, ["A"], place)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stopped = stopped_by(jobs, place, (place.root / "up").exists, signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert [one.outcome for one in stopped.results] == [Outcome.STOPPED]
    assert not (place.root / "slept").exists()


def test_what_was_stopped_goes_on_where_it_was(place: Place) -> None:
    jobs = waiting_jobs(place)
    stopped_by(jobs, place, lambda: len(lines_of(jobs[0])) == 2, signal.SIGINT)
    (place.root / "go").touch()
    assert [one.outcome for one in run_jobs(jobs, Setup(place.root))] == [Outcome.DONE]
    assert len(lines_of(jobs[0])) == 4
    assert "epochs there: 2" in jobs[0].log.read_text()


def test_a_job_that_ends_well_in_spite_of_the_signal_is_done(place: Place) -> None:
    (place.root / "brave.py").write_text(
        "import signal, sys, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGINT, lambda *_: (Path(sys.argv[1], 'cells.json').touch(), sys.exit(0)))\n"
        "Path('up').touch()\ntime.sleep(1200)\n"
    )
    jobs = plan_jobs({"A": experiment("A", commands=(command("look", run="brave.py {out}"),))}, ["A"], place)
    stopped = stopped_by(jobs, place, (place.root / "up").exists, signal.SIGINT)
    assert [one.outcome for one in stopped.results] == [Outcome.DONE]


def test_a_second_signal_kills_what_does_not_listen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    (place.root / "deaf.py").write_text(
        "import signal, time\nfrom pathlib import Path\n"
        "signal.signal(signal.SIGINT, lambda *_: Path('heard').touch())\nPath('up').touch()\ntime.sleep(1200)\n"
    )
    jobs = plan_jobs({"A": experiment("A", commands=(command("look", run="deaf.py"),))}, ["A"], place)

    def ready() -> bool:
        name = "heard" if (place.root / "first").exists() else "up"
        if found := (place.root / name).exists():
            (place.root / "first").touch()
        return found

    stopped = stopped_by(jobs, place, ready, signal.SIGINT, signal.SIGINT)
    assert [one.outcome for one in stopped.results] == [Outcome.STOPPED]
    assert jobs[0].status().state is State.MISSING


def test_a_job_that_is_killed_has_failed_and_resumes(place: Place) -> None:
    (job,) = waiting_jobs(place)

    def kill() -> None:
        wait_for(lambda: len(lines_of(job)) == 2)
        os.kill(int((place.root / "pid").read_text()), signal.SIGKILL)

    main = place.root / "main.py"
    main.write_text(main.read_text().replace("words =", "Path('pid').write_text(str(os.getpid()))\nwords =", 1))
    thread = threading.Thread(target=kill)
    thread.start()
    (result,) = run_jobs([job], Setup(place.root))
    thread.join()
    assert result.outcome is Outcome.FAILED
    assert result.why == "killed by SIGKILL, as a machine out of memory does; last: epochs there: 0"
    (place.root / "go").touch()
    run_jobs([job], Setup(place.root))
    assert "epochs there: 2" in job.log.read_text()
    assert job.status().state is State.DONE


def test_a_job_that_lost_its_scheduler_is_in_use_while_it_lives_and_resumes_after_a_kill(place: Place) -> None:
    (job,) = waiting_jobs(place)
    lock = take(job)
    running = start(job, lock, place.root, threads=1)
    os.close(lock)  # as when the scheduler is killed: nothing is written down, and the child lives
    wait_for(lambda: len(lines_of(job)) == 2)
    assert take(job) is None
    running.signal(signal.SIGKILL)
    running.process.wait()
    running.log.close()
    assert job.status().state is State.INTERRUPTED
    (place.root / "go").touch()
    assert [one.outcome for one in run_jobs([job], Setup(place.root))] == [Outcome.DONE]
    assert order(place.root) == ["gcn/0", "gcn/0"]
    assert "epochs there: 2" in job.log.read_text()
