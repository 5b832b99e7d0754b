"""Jobs go to a cluster. Here is none: submitit's local executor runs them, and a dry run shows what Slurm would get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments import slurm
from graphgps_kmip.experiments.experiment_spec import Need, Training
from graphgps_kmip.experiments.jobs import Job, Place, plan_jobs
from graphgps_kmip.experiments.slurm import groups, parsed_options, preview, submit
from tests.experiments.project import command, experiment, make_project, order, training


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_project(tmp_path)


def jobs_of(place: Place, *more: Training) -> list[Job]:
    look = command("look", Need("A", {"model": "GCN"}), Need("A", {"model": "GAT"}))
    commands = (look, command("bench"), *(command("in vain", Need("A", one.point)) for one in more))
    return plan_jobs({"A": experiment("A", training("GCN"), training("GAT"), *more, commands=commands)}, ["A"], place)


def test_jobs_with_the_same_needs_are_submitted_together(place: Place) -> None:
    found = [[job.label for job in group] for group in groups(jobs_of(place))]
    assert found == [["A GCN seed 0", "A GAT seed 0", "A bench"], ["A look"]]


def test_a_dry_run_shows_the_files_that_sbatch_would_get(place: Place) -> None:
    options = parsed_options(["partition=gpu,time=1-02:30:00", "gres=gpu:1,mem=40GB"])
    text = preview(jobs_of(place), place.root / "slurm", options)
    first, second = text.split("# group 2: 1 jobs, the first one A look")
    assert first.startswith("# group 1: 3 jobs, the first one A GCN seed 0\n#!/bin/bash")
    for line in ("partition=gpu", "time=1590", "gres=gpu:1", "mem=40GB", "array=0-2%3", "job-name=reproduce"):
        assert f"#SBATCH --{line}\n" in first
    assert "dependency" not in first
    assert "#SBATCH --dependency='afterok:<jobs of group 1>'" in second
    assert "#SBATCH --kill-on-invalid-dep=yes" in second
    assert not (place.root / "slurm").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partion=gpu", "unknown key 'partion'. Did you mean partition"),
        ("partition", "expected key=value"),
        ("partition=gpu", "time is missing"),
        ("time=1h", "time is minutes or"),
        ("time=5,executor=pbs", "executor is slurm or local, got 'pbs'"),
    ],
)
def test_a_mistake_in_the_options_is_told(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        parsed_options([text])
    assert message in str(error.value)


def test_without_submitit_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ManifestError, match="pip install submitit"):
        parsed_options(["time=5"])


def test_without_slurm_the_error_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ManifestError, match="srun"):
        submit(
            jobs_of(place), lambda job: job.words, place.root, place.root / "slurm", parsed_options(["time=5"]), print
        )


def test_the_local_executor_runs_jobs_then_what_needs_them_and_nothing_that_needs_a_failed_one(place: Place) -> None:
    # Each job runs its own script here, with no scheduler inside that would make its folder.
    tool = place.root / "tool.py"
    tool.write_text(tool.read_text().replace("with Path", "out.mkdir(parents=True)\nwith Path", 1))
    jobs = [job for job in jobs_of(place, training("Bad", do="fail")) if job.label != "A bench"]
    said: list[str] = []
    options = parsed_options(["executor=local,time=5"])
    assert not submit(jobs, lambda job: job.words, place.root, place.root / "slurm/%j", options, said.append)
    assert sorted(order(place.root)[:3]) == ["bad/0", "gat/0", "gcn/0"]
    assert order(place.root)[3:] == ["look"], said
    assert [line.split(",")[0] for line in said[:2]] == ["submitted 3 jobs", "submitted 1 jobs"]
    assert said[2:] == ["not submitted, as a need of it failed: A in vain"]


def test_slurm_is_told_the_ids_of_the_jobs_that_another_needs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "bin").mkdir()
    for name, text in {"srun": "", "sbatch": f'cat "$1" >> {place.root}/sent; echo Submitted batch job 77'}.items():
        (place.root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (place.root / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.root}/bin:/usr/bin:/bin")
    options = parsed_options(["partition=gpu,time=5"])
    assert submit(jobs_of(place), lambda job: job.words, place.root, place.root / "slurm/%j", options, print)
    sent = (place.root / "sent").read_text()
    assert "#SBATCH --dependency=afterok:77_0:77_1\n" in sent
    assert sent.count("#SBATCH --partition=gpu") == 2


def test_a_job_whose_time_is_up_goes_to_the_queue_again(place: Place) -> None:
    worker = slurm.Worker(["main.py"], place.root)
    assert worker.checkpoint().function is worker
