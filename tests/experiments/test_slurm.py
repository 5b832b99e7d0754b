"""Jobs go to a cluster. Here is none: a dry run shows what Slurm would get, and a made-up sbatch what it gets."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import submitit

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments import slurm
from graphgps_kmip.experiments.experiment_spec import Need, Training
from graphgps_kmip.experiments.jobs import Job, Place, plan_jobs
from graphgps_kmip.experiments.slurm import Worker, group_jobs, parse_options, run_on_slurm, submit
from tests.experiments.project import command, experiment, make_command_line, make_project, order, training
from tests.processes import HANGS, wait_for

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
OVER_NODES = ("--nodes", "2", "--gpus-per-node", "8")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_project(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A project, and the commands of Slurm, of which sbatch keeps what it gets."""
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": "true", "sbatch": f'cat "$1" >> {tmp_path}/sent; echo Submitted batch job 77'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def jobs_of(place: Place, *more: Training) -> list[Job]:
    look = command("look", Need("A", {"model": "GCN"}), Need("A", {"model": "GAT"}))
    commands = (look, command("bench"), *(command("in vain", Need("A", row.point)) for row in more))
    return plan_jobs({"A": experiment("A", training("GCN"), training("GAT"), *more, commands=commands)}, ["A"], place)


def make_worker(job: Job) -> Worker:
    return Worker(job.arguments, job.path.parents[2])


def test_a_dry_run_shows_the_files_of_sbatch_grouped_by_needs(place: Place, capsys: Capture) -> None:
    groups = [[job.label for job in group] for group in group_jobs(jobs_of(place))]
    assert groups == [["A GCN seed 0", "A GAT seed 0", "A bench"], ["A look"]]
    options = parse_options(["partition=gpu,time=1-02:30:00", "gres=gpu:1,mem=40GB"])
    submit(jobs_of(place), make_worker, place.root / "slurm", options, dry_run=True)
    first, second = capsys.readouterr().out.split("# group 2: 1 jobs, the first one A look")
    assert first.startswith("# group 1: 3 jobs, the first one A GCN seed 0\n#!/bin/bash")
    for line in ("partition=gpu", "time=1590", "gres=gpu:1", "mem=40GB", "array=0-2%3", "job-name=reproduce"):
        assert f"#SBATCH --{line}\n" in first
    assert "dependency" not in first
    assert "#SBATCH --dependency='afterok:<jobs of group 1>'" in second
    assert "#SBATCH --kill-on-invalid-dep=yes" in second
    assert not (place.root / "slurm").exists()


@pytest.mark.parametrize(
    ("text", "nodes", "message"),
    [
        ("partion=gpu", None, "unknown key 'partion'. Did you mean partition"),
        ("nodes=3,time=5", 2, "unknown key 'nodes'"),
        ("partition", None, "expected key=value"),
        ("partition=gpu", None, "time is missing"),
        ("time=1h", None, "time is minutes or"),
    ],
)
def test_a_mistake_in_the_options_is_told(text: str, nodes: int | None, message: str) -> None:
    with pytest.raises(ManifestError) as error:
        parse_options([text], nodes, 8)
    assert message in str(error.value)


def test_without_submitit_or_slurm_the_error_says_so(place: Place, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ManifestError, match="srun"):
        submit(jobs_of(place), make_worker, place.root / "slurm", parse_options(["time=5"]))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ManifestError, match="pip install submitit"):
        parse_options(["time=5"])


def test_a_job_runs_in_the_folder_of_the_project_and_its_failure_is_an_error(place: Place) -> None:
    gcn, bad = plan_jobs({"A": experiment("A", training("GCN"), training("Bad", do="fail"))}, ["A"], place)
    Worker(gcn.arguments, place.root)()
    with pytest.raises(subprocess.CalledProcessError):
        Worker(bad.arguments, place.root)()
    assert order(place.root) == ["gcn/0", "bad/0"]


def test_slurm_is_told_the_ids_of_the_jobs_that_another_needs(place: Place, cluster: Path) -> None:
    options = parse_options(["partition=gpu,time=5"])
    submit(jobs_of(place), make_worker, place.root / "slurm/%j", options)
    sent = (cluster / "sent").read_text()
    assert "#SBATCH --dependency=afterok:77_0:77_1\n" in sent
    assert sent.count("#SBATCH --partition=gpu") == 2
    (cluster / "bin/sbatch").write_text("#!/bin/sh\necho invalid partition >&2; exit 1\n")
    with pytest.raises(ManifestError, match="--slurm: sbatch failed: .*invalid partition"):
        submit(jobs_of(place), make_worker, place.root / "slurm/%j", options)


def test_a_job_whose_time_is_up_saves_and_goes_to_the_queue_again(tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (open('saved', 'w'), sys.exit(143)))\n"
    (tmp_path / "train.py").write_text(f"{code}open('up', 'w')\ntime.sleep({HANGS})\n")
    worker, again = Worker(["train.py"], tmp_path), []

    def time_is_up(*_: object) -> None:  # in a handler of a signal, as submitit calls it
        again.append(worker.checkpoint().function)
        assert (tmp_path / "saved").exists()

    before = signal.signal(signal.SIGALRM, time_is_up)
    alarm = threading.Thread(target=lambda: (wait_for((tmp_path / "up").exists), os.kill(os.getpid(), signal.SIGALRM)))
    alarm.start()
    try:
        with pytest.raises(subprocess.CalledProcessError):
            worker()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (again[0].arguments, again[0].root, again[0].process) == (["train.py"], tmp_path, None)


def test_over_nodes_trainings_are_one_job_array(cluster: Path, monkeypatch: Patch, capsys: Capture) -> None:
    make_command_line(reproduce, cluster, monkeypatch)
    argv = ["run", "A", "--only", "model=GCN+GPS+kMIP", "--slurm", "partition=gpu,time=1-00:00:00", *OVER_NODES]
    assert reproduce.main(["run", "A", "--job", "set/kmip/1"]) == 0
    assert reproduce.main([*argv, "--slurm-dry-run"]) == 0
    text = capsys.readouterr().out
    for line in ("partition=gpu", "time=1440", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "array=0-2%3"):
        assert f"#SBATCH --{line}\n" in text
    assert "#SBATCH --signal=USR2@120\n" in text
    assert "--kill-on-bad-exit=0" in text
    assert not (cluster / "results/slurm").exists()
    assert reproduce.main(argv) == 0
    assert "submitted 3 jobs, ids 77_0 to 77_2" in capsys.readouterr().out


@pytest.mark.parametrize("shipped", [False, True])
def test_over_nodes_torchrun_starts_a_training_on_every_node(shipped: bool, place: Place, monkeypatch: Patch) -> None:
    place = Place(place.root, place.out, place.compute_hash, shipped=place.root / "run" if shipped else None)
    jobs, workers = plan_jobs({"A": experiment("A", training("GCN"))}, ["A"], place), []
    monkeypatch.setattr(slurm, "submit", lambda jobs, make_worker, *_: workers.extend(map(make_worker, jobs)))
    args = argparse.Namespace(slurm=["time=5"], nodes=2, gpus_per_node=8, slurm_dry_run=False, retry=False, seeds=None)
    run_on_slurm(jobs, place, args)
    environment = SimpleNamespace(raw_job_id="21234", num_nodes=2, hostnames=["node7", "node8"])
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: environment)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "64")
    started = []
    monkeypatch.setattr(
        slurm.subprocess, "Popen", lambda argv, **_: started.append(argv) or SimpleNamespace(wait=lambda: 0)
    )
    workers[0]()
    assert os.environ["OMP_NUM_THREADS"] == "8"
    text = " ".join(started[0][1:])
    assert text.startswith("-m torch.distributed.run --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-id 21234 ")
    assert " --rdzv-backend c10d --rdzv-endpoint node7:11234 " in text
    assert ("--module graphgps_kmip --cfg " if shipped else " main.py --cfg ") in text
    with pytest.raises(ManifestError, match="A bench is a command, which runs in one process: choose trainings"):
        run_on_slurm(plan_jobs({"A": experiment("A", commands=(command("bench"),))}, ["A"], place), place, args)
