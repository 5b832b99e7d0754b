"""Jobs are run in order, skipped when done, resumed after signals and kills, kept apart from each other's failures."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from graphgps_kmip.common import signals
from graphgps_kmip.common.file_lock import take_descriptor
from graphgps_kmip.experiments import job_runner
from graphgps_kmip.experiments.experiment_spec import Experiment, Need
from graphgps_kmip.experiments.job_runner import JobsStopped, Outcome, Setup, describe_epochs, run_jobs, start
from graphgps_kmip.experiments.jobs import Job, Place, plan_jobs
from graphgps_kmip.experiments.run_status import State, failure_file, read_failure, run_status
from tests.experiments.project import command, experiment, make_project, order, training
from tests.processes import python, wait_for
from tests.results.damages import DAMAGES

Patch = pytest.MonkeyPatch
FACTS = {"code_version": "v1", "hardware": {"cpu": "x"}, "packages": {"torch": "2"}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_project(tmp_path)


def jobs_of(place: Place, *experiments: Experiment, keys: tuple[str, ...] = ()) -> list[Job]:
    return plan_jobs({each.id: each for each in experiments}, keys or [each.id for each in experiments], place)


def command_jobs(place: Place, code: str) -> list[Job]:
    (place.root / "script.py").write_text(code)
    return jobs_of(place, experiment("A", commands=(command("look", run="script.py"),)))


def waiting_jobs(place: Place, seeds: int = 1) -> list[Job]:
    """Trainings that do two of four epochs and wait for the file `go`."""
    return jobs_of(place, experiment("A", training("GCN", seeds=seeds, do="wait")))


def outcomes(jobs: list[Job], place: Place, **options: object) -> dict[str, Outcome]:
    results = run_jobs(jobs, Setup(place.root, FACTS, place.sample, **options))
    return {result.job.label: result.outcome for result in results}


def lines_of(job: Job) -> list[str]:
    file = job.path / "train/stats.json"
    return file.read_text().splitlines() if file.exists() else []


def meanwhile(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action)
    thread.start()
    return thread


def stopped_by(jobs: list[Job], place: Place, when: Callable[[], bool], *signals: int) -> JobsStopped:

    def send() -> None:
        for signum in signals:
            wait_for(when)
            os.kill(os.getpid(), signum)

    thread = meanwhile(send)
    with pytest.raises(JobsStopped) as stopped:
        run_jobs(jobs, Setup(place.root))
    thread.join()
    return stopped.value


def test_needs_run_first_and_a_second_time_nothing_runs(place: Place) -> None:
    base = experiment("A", training("GCN", seeds=2), training("GAT"))
    look = command("look", Need("A", {"model": "GCN"}, 1))
    other = experiment("B", commands=(look, command("two", Need("B", command="look"))))
    jobs = jobs_of(place, base, other, keys=("B",))
    for _ in range(2):
        assert set(outcomes(jobs, place).values()) == {Outcome.DONE}
        assert order(place.root) == ["gcn/1", "look", "two"]


def test_a_failure_stops_only_what_needs_it_and_is_tried_again(place: Place) -> None:
    look = command("look", Need("A", {"model": "Bad"}))
    jobs = jobs_of(place, experiment("A", training("Bad", do="fail"), training("GCN"), commands=(look,)))
    results = run_jobs(jobs, Setup(place.root))
    assert [result.outcome for result in results] == [Outcome.FAILED, Outcome.DONE, Outcome.BLOCKED]
    assert (results[0].why, results[2].why) == ("no such dataset 'x'", "needs A Bad seed 0, which is failed")
    failure = json.loads(failure_file(jobs[0].path).read_text())
    assert failure.keys() == {"error", "exit_code", "date", "config_hash", "log", "seconds"}
    assert (failure["exit_code"], failure["config_hash"]) == (1, "do=fail|seed=0")
    assert "Traceback: long" in Path(failure["log"]).read_text()
    assert jobs[0].status().state is State.FAILED
    (place.root / "mended").touch()
    assert set(outcomes(jobs, place).values()) == {Outcome.DONE}
    assert not failure_file(jobs[0].path).exists()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import sys; print('error: old'); sys.exit('error: no disk')", "no disk"),
        ("import sys; print('Oops'); sys.exit(4)", "Oops"),
        ("raise SystemExit(5)", "no output"),
        ("print('nothing to do')", "it ended well, but wrote no cells.json"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL, as a machine out of memory does; last: no output"),
    ],
)
def test_why_a_command_failed_is_the_error_of_the_last_attempt(place: Place, code: str, why: str) -> None:
    jobs = command_jobs(place, code)
    jobs[0].path.mkdir(parents=True)
    (jobs[0].path / "cells.json").write_text("an older one")
    for _ in range(2):
        (result,) = run_jobs(jobs, Setup(place.root))
        assert (result.outcome, result.why) == (Outcome.FAILED, why)


def test_a_record_of_other_settings_than_asked_for_is_no_success(place: Place) -> None:
    other = Place(place.root, place.out, lambda _: "another")
    (result,) = run_jobs(jobs_of(other, experiment("A", training("GCN"))), Setup(place.root))
    assert result.outcome is Outcome.FAILED
    assert "its record is not that of this configuration" in result.why


def test_what_diverged_is_repeated_only_on_demand(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("Bad", do="diverge")))
    for retry, attempts in ((False, 1), (False, 1), (True, 2)):
        assert outcomes(jobs, place, retry=retry) == {"A Bad seed 0": Outcome.FAILED}
        assert jobs[0].status().state is State.DIVERGED
        assert len(order(place.root)) == attempts


def test_other_settings_make_a_run_and_what_was_made_of_it_stale(place: Place) -> None:
    def whole(k: int) -> list[Job]:
        look = command("look", Need("A", {"model": "GCN"}))
        return jobs_of(place, experiment("A", training("GCN", k=k), commands=(look,)))

    outcomes(whole(1), place)
    assert whole(2)[0].status().state is State.STALE
    file = place.root / "results/commands/A/look/record.json"
    early = "2025-01-01T00:00:00+00:00"  # the fake main.py ends in 2026
    file.write_text(json.dumps(json.loads(file.read_text()) | {"finished_at": early}))
    outcomes(whole(2), place)
    assert order(place.root) == ["gcn/0", "look", "gcn/0", "look"]
    assert (place.root / "results/commands/A/look.old-1/cells.json").exists()


def test_a_command_is_done_with_all_its_files_and_a_record_of_what_it_ran_on(tmp_path: Path) -> None:
    place = make_project(tmp_path, sample=True)
    jobs = jobs_of(place, experiment("A", training("GCN"), commands=(command("look"),)))
    outcomes(jobs, place)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["commands-sample", "set-sample"]
    record = json.loads((jobs[1].path / "record.json").read_text())
    assert record.pop("seconds") >= 0
    assert record.pop("finished_at") > "2026"
    assert record == {"finished": True, "config_hash": "tool.py {out}", **FACTS, "sample": True}
    (jobs[1].path / "cells.json").unlink()
    assert jobs[1].status().state is State.MISSING


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_does_not_count_and_the_results_of_a_command_are_moved_aside(damage: str, place: Place) -> None:
    (job,) = command_jobs(place, "from pathlib import Path; Path('results/commands/A/look/cells.json').write_text('2')")
    run = training("GCN")
    for path in (job.path, run.run_dir(0, place.root)):
        path.mkdir(parents=True)
        (path / "cells.json").write_text("hours of work")
        (path / "record.json").write_text(json.dumps({"finished": True, "config_hash": "seed=0", "best": {}}))
        DAMAGES[damage](path / "record.json")
        failure_file(path).write_text(json.dumps({"error": "e", "config_hash": "h"}))
        DAMAGES[damage](failure_file(path))
        assert read_failure(path) == {}
    status = run_status(run, 0, place.root, place.compute_hash)
    assert (status.state, status.error[:27]) == (State.MISSING, "its record.json is damaged ")
    if damage == "not JSON":
        assert [result.outcome for result in run_jobs([job], Setup(place.root))] == [Outcome.DONE]
        assert (job.path.with_name("look.old-1") / "cells.json").read_text() == "hours of work"


def test_as_many_jobs_run_at_once_as_asked_for_and_share_the_cores(place: Place, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)), raising=False)
    assert Setup(place.root, parallel=4).threads == 2
    begun: list[int] = []

    def release() -> None:
        wait_for(lambda: len(order(place.root)) == 2)
        begun.append(len(order(place.root)))
        (place.root / "go").touch()

    thread = meanwhile(release)
    assert list(outcomes(waiting_jobs(place, seeds=3), place, parallel=2).values()) == [Outcome.DONE] * 3
    thread.join()
    assert begun == [2]


def test_two_schedulers_run_no_job_twice(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("GCN", seeds=4), commands=(command("look"),)))
    sets: list[set[Outcome]] = []
    threads = [meanwhile(lambda: sets.append(set(outcomes(jobs, place).values()))) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert sets == [{Outcome.DONE}, {Outcome.DONE}]
    assert sorted(order(place.root)) == ["gcn/0", "gcn/1", "gcn/2", "gcn/3", "look"]


def test_a_job_that_another_finished_meanwhile_is_not_repeated(place: Place, monkeypatch: Patch) -> None:
    (job,) = jobs_of(place, experiment("A", training("GCN")))

    def late(path: Path) -> int | None:
        python(*job.arguments, cwd=place.root, check=True)
        return take_descriptor(path)

    monkeypatch.setattr(job_runner, "take_descriptor", late)
    assert outcomes([job], place) == {"A GCN seed 0": Outcome.DONE}
    assert order(place.root) == ["gcn/0"]


@pytest.mark.parametrize("ending", ["job.lock", "lock"])  # of another scheduler, and of a main.py
def test_a_job_of_another_process_is_in_use(place: Place, ending: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(job_runner, "PATIENCE", 0.3)
    held, free = jobs_of(place, experiment("A", training("GCN"), training("GAT")))
    held.path.parent.mkdir(parents=True)
    with FileLock(held.lock_file(ending)):
        assert outcomes([held, free], place) == {held.label: Outcome.IN_USE, free.label: Outcome.DONE}
    assert not failure_file(held.path).exists()
    assert outcomes([held], place) == {held.label: Outcome.DONE}


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_job_begins_no_other_and_the_same_command_goes_on(place: Place, signum: int) -> None:
    jobs = waiting_jobs(place, seeds=2)
    before = signal.getsignal(signum)
    stopped = stopped_by(jobs, place, lambda: len(lines_of(jobs[0])) == 2, signum)
    assert stopped.signum == signum
    assert signal.getsignal(signum) is before
    assert [result.outcome for result in stopped.results] == [Outcome.STOPPED] * 2
    assert [job.status().state for job in jobs] == [State.INTERRUPTED, State.MISSING]
    assert not failure_file(jobs[0].path).exists()
    (place.root / "go").touch()
    assert set(outcomes(jobs, place).values()) == {Outcome.DONE}
    assert len(lines_of(jobs[0])) == 4
    assert "epochs there: 2" in jobs[0].log.read_text()


@pytest.mark.parametrize("signals_sent", [1, 2])
def test_a_second_signal_kills_a_job(place: Place, signals_sent: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(signals, "ECHO_SECONDS", 0.0)
    write = "; Path('results/commands/A/look/cells.json').touch(); sys.exit(0)" if signals_sent == 1 else ""
    jobs = command_jobs(
        place,
        f"import signal, sys, time\nfrom pathlib import Path\ndef hear(*_): Path('heard').touch(){write}\n"
        "signal.signal(signal.SIGTERM, hear)\nPath('up').touch()\ntime.sleep(1200)\n",
    )

    def ready() -> bool:
        name = "heard" if (place.root / "first").exists() else "up"
        if exists := (place.root / name).exists():
            (place.root / "first").touch()
        return exists

    stopped = stopped_by(jobs, place, ready, *[signal.SIGINT] * signals_sent)
    done = signals_sent == 1
    assert [result.outcome for result in stopped.results] == [Outcome.DONE if done else Outcome.STOPPED]
    assert jobs[0].status().state is (State.DONE if done else State.MISSING)


def test_a_job_that_is_killed_has_failed_and_resumes(place: Place) -> None:
    (job,) = waiting_jobs(place)
    main = place.root / "main.py"
    main.write_text(main.read_text().replace("words =", "Path('pid').write_text(str(os.getpid()))\nwords =", 1))

    def kill() -> None:
        wait_for(lambda: len(lines_of(job)) == 2)
        os.kill(int((place.root / "pid").read_text()), signal.SIGKILL)

    thread = meanwhile(kill)
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
    running = start(job, Setup(place.root))
    os.close(running.lock)  # as when the scheduler is killed: nothing is written down, and the child lives
    wait_for(lambda: len(lines_of(job)) == 2)
    assert describe_epochs(running).startswith("epoch 2, ")
    assert job.is_running()
    assert start(job, Setup(place.root)) is None
    running.signal(signal.SIGKILL)
    running.process.wait()
    running.log.close()
    assert job.status().state is State.INTERRUPTED
    (place.root / "go").touch()
    assert set(outcomes([job], place).values()) == {Outcome.DONE}
    assert order(place.root) == ["gcn/0", "gcn/0"]


def test_there_is_a_line_when_a_job_begins_or_ends_and_each_minute(place: Place, monkeypatch: Patch) -> None:
    monkeypatch.setattr(job_runner, "REPORT", 0.0)
    monkeypatch.chdir(place.root)
    jobs = jobs_of(place, experiment("A", training("GCN"), training("Bad", do="fail")))
    text = io.StringIO()
    run_jobs(jobs, Setup(place.root), text)
    lines = [re.sub(r"[\d.]+ s", "0 s", line) for line in text.getvalue().splitlines()]
    reports = [line for line in lines if "1 running" in line]
    assert "1 running, 1 waiting; A GCN seed 0 for 0 s" in reports
    assert reports[-1].startswith("1 done, 1 running, about 0 s to go; A Bad seed 0 ")
    assert [line for line in lines if line not in reports] == [
        *("start   A GCN seed 0", "done    A GCN seed 0 (0 s)", "start   A Bad seed 0"),
        "failed  A Bad seed 0: no such dataset 'x'; log: results/set/bad/0.log",
    ]
