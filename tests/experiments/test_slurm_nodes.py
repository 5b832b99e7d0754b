"""An sbatch script for trainings over several nodes: its text, and what bash makes of it with stand-ins for Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from graphgps_kmip import reproduce
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.jobs import Job, plan_jobs
from graphgps_kmip.experiments.slurm_nodes import parsed_options, script_of
from tests.experiments.project import command, experiment, make_command_line, make_project, training
from tests.processes import run, wait_for

STAND_INS = {
    "srun": 'echo "$@" > ran; trap "echo saved > saved; exit 1" TERM; until [ -e go ]; do sleep 0.05; done',
    "scontrol": 'case $1 in show) echo node7; echo node8;; requeue) echo "$2" > requeued;; esac',
    "sbatch": 'cat "$2" > sent; echo 77',
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_command_line(reproduce, tmp_path, monkeypatch)
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\ncd {tmp_path}\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def words(*more: str) -> list[str]:
    return ["run", "A", "--only", "model=GCN+GPS+kMIP", "--slurm", "partition=gpu,time=1-00:00:00", *more]


OVER = ("--nodes", "2", "--gpus-per-node", "8")


def test_every_training_that_is_not_done_is_an_element_of_one_job_array(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce.main(["run", "A", "--job", "set/kmip/1"]) == 0
    capsys.readouterr()
    assert reproduce.main(words(*OVER, "--slurm-dry-run")) == 0
    text = capsys.readouterr().out
    lines = ["partition=gpu", "time=1440", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "array=0-2", "requeue"]
    for line in [*lines, "signal=B:USR1@120", "job-name=reproduce"]:
        assert f"#SBATCH --{line}\n" in text
    assert text.count(") set -- main.py --cfg ") == 3
    assert text.count("train.auto_resume true") == 3
    assert "kmip.yaml" in text
    assert "seed 1" not in [line for line in text.splitlines() if "kmip.yaml" in line][0]
    assert not (project / "results/slurm").exists()


def started(project: Path, element: str) -> subprocess.Popen[bytes]:
    """Submit, then run what sbatch got as Slurm would on the first node."""
    assert reproduce.main(words(*OVER)) == 0
    given = {"SLURM_JOB_ID": "21234", "SLURM_ARRAY_TASK_ID": element, "SLURM_CPUS_ON_NODE": "64"}
    script = subprocess.Popen(["bash", str(project / "sent")], env=os.environ | given)
    wait_for((project / "ran").exists)
    return script


def test_the_script_starts_torchrun_on_every_node_with_the_words_of_its_training(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = started(project, "1")
    assert "submitted 4 trainings on 2 nodes each, id 77, script " in capsys.readouterr().out
    (project / "go").touch()
    assert script.wait() == 0
    ran = (project / "ran").read_text()
    assert "-m torch.distributed.run --nnodes 2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d " in ran
    assert "--rdzv-id 21234 --rdzv-endpoint node7:11234 main.py --cfg configs/set/kmip.yaml " in ran
    assert "seed 0" in ran
    assert not (project / "requeued").exists()


def test_before_its_time_is_up_the_run_saves_and_is_queued_again(project: Path) -> None:
    script = started(project, "0")
    script.send_signal(signal.SIGUSR1)
    assert script.wait() == 0
    assert (project / "saved").exists()
    assert (project / "requeued").read_text() == "21234\n"


def test_bash_finds_no_fault_in_a_script_with_names_that_need_quotes(tmp_path: Path) -> None:
    place = make_project(tmp_path / "a folder; with 'all'")
    jobs = plan_jobs({"A": experiment("A", training("GCN", tag="x y; $z"))}, ["A"], place)
    text = script_of(jobs, place.root, place.root / "slurm", {"time": "5", "comment": "two words"}, 2, 4)
    assert run(["bash", "-n"], input=text).stderr == ""
    assert "#SBATCH --comment='two words'\n" in text


def test_an_installed_package_is_started_as_a_module(tmp_path: Path) -> None:
    place = replace(make_project(tmp_path), shipped=tmp_path / "run")
    jobs = plan_jobs({"A": experiment("A", training("GCN"))}, ["A"], place)
    text = script_of(jobs, place.root, place.root / "slurm", {"time": "5"}, 2, 4)
    assert "  0) set -- --module graphgps_kmip --cfg " in text


def test_a_command_is_refused(tmp_path: Path) -> None:
    jobs: list[Job] = plan_jobs({"A": experiment("A", commands=(command("bench"),))}, ["A"], make_project(tmp_path))
    with pytest.raises(ManifestError, match=r"A bench is a command, which runs in one process: choose trainings"):
        script_of(jobs, tmp_path, tmp_path, {"time": "5"}, 2, 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--nodes", "2"], "--nodes and --gpus-per-node go together"),
        (["--gpus-per-node", "2"], "--nodes and --gpus-per-node go together"),
        ([*OVER, "--slurm", "nodes=3"], "--slurm: unknown key 'nodes'"),
        ([*OVER, "--search"], "--search runs on this machine alone"),
    ],
)
def test_a_mistake_is_one_line(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str], project: Path
) -> None:
    assert reproduce.main(words(*more)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not (project / "sent").exists()


def test_nodes_need_the_options_of_slurm(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["run", "A", *OVER]) == 2
    assert "go together, and with --slurm" in capsys.readouterr().err
    with pytest.raises(ManifestError, match="time is missing"):
        parsed_options(["partition=gpu"])
    assert not (project / "sent").exists()


@pytest.mark.parametrize("broken", ["missing", "failing"])
def test_a_script_that_cannot_be_submitted_is_kept_and_named(
    broken: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = project / "bin/sbatch"
    sbatch.write_text("#!/bin/bash\necho 'invalid partition' >&2; exit 1\n")
    if broken == "missing":
        sbatch.unlink()
    assert reproduce.main(words(*OVER)) == 2
    error = capsys.readouterr().err
    assert ("has no sbatch" if broken == "missing" else "failed: invalid partition") in error
    assert str(project / "results/slurm/A.sbatch") in error
    assert (project / "results/slurm/A.sbatch").exists()
