"""Jobs are run in order, skipped when done, resumed, kept apart from each other's failures."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from graphgps_kmip.experiments import job_runner
from graphgps_kmip.experiments.experiment_spec import Experiment, Need
from graphgps_kmip.experiments.job_process import take
from graphgps_kmip.experiments.job_runner import Outcome, Setup, run_jobs
from graphgps_kmip.experiments.jobs import Job, Place, plan_jobs
from graphgps_kmip.experiments.run_status import State, failure_file
from tests.experiments.project import command, experiment, make_project, order, training
from tests.processes import python, wait_for

FACTS = {"code_version": "v1", "hardware": {"cpu": "x"}, "packages": {"torch": "2"}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_project(tmp_path)


def jobs_of(place: Place, *experiments: Experiment, keys: tuple[str, ...] = ()) -> list[Job]:
    return plan_jobs({one.id: one for one in experiments}, keys or [one.id for one in experiments], place)


def outcomes(jobs: list[Job], place: Place, **options: object) -> dict[str, Outcome]:
    results = run_jobs(jobs, Setup(place.root, FACTS, place.sample, **options))
    return {one.job.label: one.outcome for one in results}


def test_needs_run_first_and_a_second_time_nothing_runs(place: Place) -> None:
    base = experiment("A", training("GCN", seeds=2), training("GAT"))
    other = experiment(
        "B", commands=(command("look", Need("A", {"model": "GCN"}, 1)), command("two", Need("B", command="look")))
    )
    jobs = jobs_of(place, base, other, keys=("B",))
    assert set(outcomes(jobs, place).values()) == {Outcome.DONE}
    assert order(place.root) == ["gcn/1", "look", "two"]
    assert set(outcomes(jobs, place).values()) == {Outcome.DONE}
    assert len(order(place.root)) == 3


def test_a_failure_stops_only_what_needs_it_and_is_told_by_its_error_line(place: Place) -> None:
    bad = experiment(
        "A", training("Bad", do="fail"), training("GCN"), commands=(command("look", Need("A", {"model": "Bad"})),)
    )
    jobs = jobs_of(place, bad)
    results = {one.job.label: one for one in run_jobs(jobs, Setup(place.root))}
    assert [one.outcome for one in results.values()] == [Outcome.FAILED, Outcome.DONE, Outcome.BLOCKED]
    assert results["A Bad seed 0"].why == "no such dataset 'x'"
    assert results["A look"].why == "needs A Bad seed 0, which is failed"
    failure = json.loads(failure_file(jobs[0].path).read_text())
    assert failure.keys() == {"error", "exit_code", "date", "config_hash", "log", "seconds"}
    assert (failure["exit_code"], failure["config_hash"]) == (1, "do=fail|seed=0")
    assert failure["seconds"] > 0
    assert "Traceback: long" in Path(failure["log"]).read_text()
    assert jobs[0].status().state is State.FAILED


def test_what_failed_is_tried_again_and_its_failure_forgotten(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("Bad", do="fail")))
    outcomes(jobs, place)
    (place.root / "mended").touch()
    assert outcomes(jobs, place) == {"A Bad seed 0": Outcome.DONE}
    assert not failure_file(jobs[0].path).exists()


def test_the_error_is_that_of_the_last_attempt(place: Place) -> None:
    script = place.root / "broken.py"
    jobs = jobs_of(place, experiment("A", commands=(command("look", run="broken.py"),)))
    whys = []
    for ending in ("sys.exit('error: no disk')", "print('Oops'); sys.exit(4)", "sys.exit(5)"):
        script.write_text(f"import sys\n{ending}")
        whys += [one.why for one in run_jobs(jobs, Setup(place.root))]
    assert whys == ["no disk", "Oops", "no output"]


def test_what_diverged_is_repeated_only_on_demand(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("Bad", do="diverge")))
    for _ in range(2):
        assert outcomes(jobs, place) == {"A Bad seed 0": Outcome.FAILED}
    assert jobs[0].status().state is State.DIVERGED
    assert len(order(place.root)) == 1
    outcomes(jobs, place, retry=True)
    assert len(order(place.root)) == 2


def test_other_settings_make_a_run_and_what_was_made_of_it_stale(place: Place) -> None:
    def whole(k: int) -> list[Job]:
        return jobs_of(
            place, experiment("A", training("GCN", k=k), commands=(command("look", Need("A", {"model": "GCN"})),))
        )

    outcomes(whole(1), place)
    assert whole(2)[0].status().state is State.STALE
    record = json.loads((place.root / "results/commands/A/look/record.json").read_text())
    record["finished_at"] = "2025-01-01T00:00:00+00:00"  # the fake main.py ends in 2026
    (place.root / "results/commands/A/look/record.json").write_text(json.dumps(record))
    outcomes(whole(2), place)
    assert order(place.root) == ["gcn/0", "look", "gcn/0", "look"]
    assert (place.root / "results/commands/A/look.old-1/cells.json").exists()


def test_a_command_is_done_with_all_its_files_and_a_record_of_what_it_ran_on(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", commands=(command("look"),)))
    outcomes(jobs, place)
    record = json.loads((jobs[0].path / "record.json").read_text())
    assert record.pop("seconds") >= 0
    assert record.pop("finished_at") > "2026"
    assert record == {"finished": True, "config_hash": "tool.py {out}", **FACTS, "sample": False}
    (jobs[0].path / "cells.json").unlink()
    assert jobs[0].status().state is State.MISSING


def test_a_command_that_leaves_out_a_file_has_failed_even_if_an_older_one_lies_there(place: Place) -> None:
    (place.root / "lazy.py").write_text("print('nothing to do')")
    jobs = jobs_of(place, experiment("A", commands=(command("look", run="lazy.py"),)))
    jobs[0].path.mkdir(parents=True)
    (jobs[0].path / "cells.json").write_text("{}")
    (result,) = run_jobs(jobs, Setup(place.root))
    assert (result.outcome, result.why) == (Outcome.FAILED, "it ended well, but wrote no cells.json")


def test_a_record_of_other_settings_than_asked_for_is_no_success(place: Place) -> None:
    other = Place(place.root, place.out, lambda _: "another")
    (result,) = run_jobs(jobs_of(other, experiment("A", training("GCN"))), Setup(place.root))
    assert result.outcome is Outcome.FAILED
    assert "its record is not that of this configuration" in result.why


def test_jobs_share_the_cores(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "lazy.py").write_text(
        "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'])"
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)), raising=False)
    jobs = jobs_of(place, experiment("A", commands=(command("look", run="lazy.py"),)))
    run_jobs(jobs, Setup(place.root, parallel=4))
    assert jobs[0].log.read_text().splitlines()[-1] == "2 2"


def test_as_many_jobs_run_at_once_as_asked_for(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("GCN", seeds=3, do="wait")))

    def release() -> None:
        seen = lambda: len(order(place.root))  # noqa: E731
        wait_for(lambda: seen() == 2)
        begun.append(seen())
        (place.root / "go").touch()

    begun: list[int] = []
    thread = threading.Thread(target=release)
    thread.start()
    assert list(outcomes(jobs, place, parallel=2).values()) == [Outcome.DONE] * 3
    thread.join()
    assert begun == [2]


def test_two_schedulers_run_no_job_twice(place: Place) -> None:
    jobs = jobs_of(place, experiment("A", training("GCN", seeds=4), commands=(command("look"),)))
    found: list[set[Outcome]] = []
    threads = [threading.Thread(target=lambda: found.append(set(outcomes(jobs, place).values()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{Outcome.DONE}, {Outcome.DONE}]
    assert sorted(order(place.root)) == ["gcn/0", "gcn/1", "gcn/2", "gcn/3", "look"]


def test_a_job_that_another_finished_just_before_its_lock_was_free_is_not_repeated(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(job: Job) -> int | None:
        python(*job.words, cwd=place.root, check=True)
        return take(job)

    monkeypatch.setattr(job_runner, "take", late)
    assert outcomes(jobs_of(place, experiment("A", training("GCN"))), place) == {"A GCN seed 0": Outcome.DONE}
    assert order(place.root) == ["gcn/0"]


@pytest.mark.parametrize("lock", ["scheduler", "main.py"])
def test_a_job_that_another_process_holds_is_in_use_and_not_failed(
    place: Place, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_runner, "PATIENCE", 0.3)
    held, free = jobs_of(place, experiment("A", training("GCN"), training("GAT")))
    held.path.parent.mkdir(parents=True)
    holder = FileLock(held.path.with_name(".0.lock"))
    descriptor = take(held) if lock == "scheduler" else holder.acquire() and None
    assert outcomes([held, free], place) == {held.label: Outcome.IN_USE, free.label: Outcome.DONE}
    assert not failure_file(held.path).exists()
    os.close(descriptor) if descriptor else holder.release()
    assert outcomes([held], place) == {held.label: Outcome.DONE}


def test_samples_are_run_apart_from_results(tmp_path: Path) -> None:
    place = make_project(tmp_path, sample=True)
    jobs = jobs_of(place, experiment("A", training("GCN"), commands=(command("look", Need("A", {"model": "GCN"})),)))
    outcomes(jobs, place)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["commands-sample", "set-sample"]
    assert json.loads((jobs[1].path / "record.json").read_text())["sample"] is True
