"""run/reproduce.py on a cluster, as a search, and with the real main.py."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from graphgps_kmip import reproduce
from graphgps_kmip.experiments import hyperparameter_search, slurm
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.job_runner import Setup, start
from graphgps_kmip.experiments.jobs import Job, Place, training_job
from graphgps_kmip.experiments.run_status import State
from tests.experiments.project import make_command_line, order, training
from tests.processes import python, wait_for

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
REAL = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Patch) -> Path:
    make_command_line(reproduce, tmp_path, monkeypatch)
    return tmp_path


def test_timing_trains_the_first_seeds_in_their_folders(project: Path, monkeypatch: Patch, capsys: Capture) -> None:
    assert reproduce.main(["run", "A"]) == 0
    for load, warned in ((0.1, False), (2.0, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        assert reproduce.main(["run", "A", "--timing"]) == 0
        assert ("warning: load 2.0 in the last minute" in capsys.readouterr().err) is warned
    assert order(project) == ["gcn/0", "kmip/0", "gcn/1", "kmip/1", "look", "gcn/0", "kmip/0"]
    runs = sorted((project / "results/timing").rglob("record.json"))
    assert [str(run.parent.relative_to(project)) for run in runs] == [
        f"results/timing/set/{name}/0" for name in ("gcn", "kmip")
    ]


@pytest.mark.parametrize("argv", [["--jobs", "2"], ["--seeds", "3"], ["--search"], ["--slurm", "time=5"]])
@pytest.mark.usefixtures("project")
def test_a_timing_beside_others_is_refused(argv: list[str], capsys: Capture) -> None:
    assert reproduce.main(["run", "A", "--timing", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--timing" in line
    assert argv[0] in line


def test_every_job_that_slurm_is_given_runs_as_a_command_of_its_own(project: Path, monkeypatch: Patch) -> None:
    submitted = []

    def submit(jobs: list[Job], make_worker: Callable[[Job], slurm.Worker], *_: object) -> bool:
        submitted.extend(make_worker(job).arguments for job in jobs)
        return True

    monkeypatch.setattr(slurm, "submit", submit)
    assert reproduce.main(["run", "A", "--sample", "--seeds", "3", "--slurm", "time=5", "--data", "sets"]) == 0
    assert {argv[0] for argv in submitted} == {"run/reproduce.py"}
    for argv in submitted:
        assert reproduce.main(argv[1:]) == 0
    assert order(project) == ["gcn/0", "kmip/0", "gcn/1", "kmip/1", "gcn/2", "kmip/2", "look"]
    assert "dataset.dir sets" in (project / "results/set-sample/gcn/2.log").read_text()


@pytest.mark.parametrize(("finished", "code"), [(True, 0), (False, 1)])
def test_a_search_gets_its_trainings_and_a_runner(
    project: Path, monkeypatch: Patch, finished: bool, code: int, capsys: Capture
) -> None:
    def run_search(
        experiment: Experiment,
        engine: str,
        ranges: object,
        runner: hyperparameter_search.Runner,
        out: Path,
        **options: object,
    ) -> list[SimpleNamespace]:
        assert [training.point["model"] for training in experiment.trainings] == ["GPS+kMIP"]
        assert (engine, ranges, out) == ("tpe", {}, project / "results")
        assert options == {"trials": 7, "sample": True}
        statuses = runner([(training("New", k=3), 5), (training("Bad", do="fail"), 0)])
        assert [status.state for status in statuses] == [State.DONE, State.FAILED]
        return [SimpleNamespace(line="k = 3 is best", log=Path("j.md"), finished=finished)]

    monkeypatch.setattr(reproduce, "run_search", run_search)
    argv = ["run", "A", "--only", "model=GPS+kMIP", "--search", "tpe", "--trials", "7", "--jobs", "2", "--sample"]
    assert reproduce.main(argv) == code
    assert "k = 3 is best\n  trial log: j.md" in capsys.readouterr().out
    assert sorted(order(project)) == ["bad/0", "new/5"]


@pytest.mark.slow
def test_a_killed_training_of_digits_resumes_and_ends_as_planned(tmp_path: Path) -> None:
    gcn = Training({}, "quickstart/digits-gcn.yaml", (0,))
    job = training_job(gcn, 0, Place(REAL, tmp_path, lambda _: "", sample=True))
    running = start(job, Setup(REAL))
    os.close(running.lock)
    wait_for((job.path / "test/stats.json").exists)
    running.signal(signal.SIGKILL)
    running.process.wait()
    assert json.loads((job.path / "record.json").read_text())["finished"] is False
    argv = ["quickstart/digits", "--only", "model=GCN", "--seeds", "1", "--sample", "--out", str(tmp_path)]
    for subcommand, last in {
        "plan": "# quickstart/digits: 1 job: 1 interrupted",
        "run": "1 of 1 jobs are done",
        "plan ": "# quickstart/digits: 1 job: 1 done",
    }.items():
        answer = python("run/reproduce.py", subcommand.strip(), *argv, check=True)
        assert answer.stdout.splitlines()[-1] == last
    assert json.loads((job.path / "record.json").read_text())["resumes"] == 1
