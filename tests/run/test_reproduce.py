"""run/reproduce.py on a project whose main.py trains nothing."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from graphgps_kmip import reproduce
from tests.experiments.project import make_command_line, order
from tests.processes import python, wait_for

Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch
REAL = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: Patch) -> Path:
    make_command_line(reproduce, tmp_path, monkeypatch)
    return tmp_path


def test_run_does_what_plan_says_word_for_word(project: Path, capsys: Capture) -> None:
    assert reproduce.main(["plan", "A", "--data", "sets"]) == 0
    *plan, summary = capsys.readouterr().out.splitlines()
    assert summary == "# A: 5 jobs: 5 missing"
    assert reproduce.main(["run", "A", "--data", "sets"]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert (first, last) == ("A: 5 jobs: 5 missing", "5 of 5 jobs are done")
    logs = [*(project / "results/set").glob("*/*.log"), *(project / "results").glob("commands/*/*/output.log")]
    ran = [log.read_text().splitlines()[0].split("  ", 1)[1] for log in logs]
    assert sorted(line.removesuffix("  # missing") for line in plan) == sorted(ran)
    assert plan[0].startswith("python main.py --cfg configs/set/gcn.yaml ")
    assert plan[0].endswith(" out_dir results/set seed 0 dataset.dir sets  # missing")
    record = json.loads((project / "results/commands/A/look/record.json").read_text())
    assert record["code_version"] == "v1"
    assert {"cpu", "cores", "device"} <= record["hardware"].keys()
    assert "torch" in record["packages"]


@pytest.mark.parametrize("action", ["plan", "run"])
def test_a_missing_config_is_named_before_anything_runs(action: str, project: Path, capsys: Capture) -> None:
    (project / "configs/set/kmip.yaml").rename(project / "configs/set/kmipp.yaml")
    assert reproduce.main([action, "A"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "A GPS+kMIP seed 0: its config configs/set/kmip.yaml does not exist. Did you mean kmipp.yaml?" in err
    assert order(project) == []
    assert reproduce.main([action, "A", "--only", "model=GCN"]) == 0  # the others are not held up by it


@pytest.mark.usefixtures("project")
def test_a_yaml_in_the_place_of_an_id_is_told_from_an_experiment(capsys: Capture) -> None:
    assert reproduce.main(["plan", "configs/set/nothing.yaml"]) == 2
    assert "error: configs/set/nothing.yaml: no such file, and no experiment has this id" in capsys.readouterr().err
    assert reproduce.main(["plan", "configs/set/gcn.yaml"]) == 2
    err = capsys.readouterr().err
    assert "configs/set/gcn.yaml: is a file, and no experiment has this id" in err
    assert "main.py --cfg FILE" in err


def test_the_planned_commands_run_from_a_shell(project: Path, capsys: Capture) -> None:
    reproduce.main(["plan", "A", "--only", "model=GPS+kMIP", "--seeds", "1"])
    line, _ = capsys.readouterr().out.splitlines()
    argv = shlex.split(line, comments=True)
    python(*argv[1:], cwd=project, check=True)
    reproduce.main(["plan", "A", "--only", "model=GPS+kMIP", "--seeds", "1"])
    assert capsys.readouterr().out.splitlines()[-1] == "# A: 1 job: 1 done"


def test_list_says_what_is_done_and_what_as_a_sample(project: Path, capsys: Capture) -> None:
    assert reproduce.main(["run", "A", "--sample"]) == 0
    assert reproduce.main(["run", "A", "--only", "model=GCN"]) == 0
    reproduce.main(["run", "bad"])
    capsys.readouterr()
    assert reproduce.main(["list"]) == 0
    table, below = capsys.readouterr().out.split("\n\n")
    assert below.startswith("done, sample: finished runs and commands")
    rows = [line.split("  ") for line in table.splitlines()]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert cells["id"] == ["done", "sample", "hours", "memory", "card", "what it is, and what it makes"]
    assert cells["A"] == ["2/5", "5", "2", "16 GB", "V100", "Two models -> table 1"]
    assert cells["bad"] == ["0/1 (1 failed)", "0", "?", "?", "?", "Fails"]
    assert order(project)


@pytest.mark.usefixtures("project")
def test_list_as_markdown_does_not_depend_on_what_is_done(capsys: Capture) -> None:
    texts = []
    for argv in (["list", "--markdown"], ["run", "A", "--only", "model=GCN"], ["list", "--markdown"]):
        assert reproduce.main(argv) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[2]
    assert "| `A` | Two models -> table 1 | 4 and 1 command | 2 | V100 | 16 GB |" in texts[0].splitlines()


def test_results_that_two_experiments_share_are_made_once(project: Path, capsys: Capture) -> None:
    look = "{run: 'tool.py {out} {need0}', sample: 'tool.py {out} {need0}', produces: [cells.json], needs:"
    shared = f"{look} [{{experiment: A, point: {{model: GCN}}, seed: 1}}], of: A}}"
    (project / "experiments/b.yaml").write_text(f"experiments: {{B: {{title: Same, commands: {{look: {shared}}}}}}}")
    assert reproduce.main(["run", "B", "A", "--only", "command=look"]) == 0
    assert reproduce.main(["run", "B"]) == 0
    assert order(project) == ["gcn/1", "look"]
    assert (project / "results/commands/A/look/record.json").exists()
    capsys.readouterr()
    reproduce.main(["list"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("B "))
    assert line.split()[1:5] == ["1/1", "0", "as", "A"]


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "import sys; from run import reproduce; sys.exit(reproduce.main(['list']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REAL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_failure_is_listed_at_the_end_and_the_exit_code_is_1(project: Path, capsys: Capture) -> None:
    assert reproduce.main(["run", "bad", "A"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "failed  bad GCN seed 0: no such dataset 'x'; log: results/set/gcn-bad/0.log" in lines
    assert lines[-2] == "failed  bad GCN seed 0: no such dataset 'x'; log: results/set/gcn-bad/0.log"
    assert lines[-1] == "5 of 6 jobs are done"
    reproduce.main(["plan", "bad"])
    assert "  # failed: no such dataset 'x'" in capsys.readouterr().out
    assert (project / "results/set/gcn-bad/0.failed.json").exists()


def test_ctrl_c_says_how_to_go_on_and_the_exit_code_is_130(project: Path, capsys: Capture) -> None:
    stats = project / "results/set/gcn-slow/0/train/stats.json"

    def interrupt() -> None:
        wait_for(lambda: stats.exists() and len(stats.read_text().splitlines()) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert reproduce.main(["run", "slow", "A"]) == 130
    thread.join()
    lines = capsys.readouterr().out.splitlines()
    assert "0 of 6 jobs are done, 6 stopped" in lines
    assert lines[-1].strip() == f"python {REAL}/run/reproduce.py run slow A"
    reproduce.main(["plan", "slow"])
    assert "# interrupted" in capsys.readouterr().out
    (project / "go").touch()
    assert reproduce.main(["run", "slow"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "a"], "error: no experiment 'a'. Did you mean A?"),
        (["run", "A", "--search", "linear", "--slurm-dry-run"], "error: --search runs on this machine alone"),
        (["plan", "LO"], "error: no experiment 'LO'. Did you mean slow?"),
        (["plan", "A", "--only", "mode=GCN"], "error: --only: A has no axis 'mode'. Did you mean model?"),
        (["table", "A"], "error: A makes no tables; `list` says what it makes"),
        (["run", "A", "--job", "set/gcn/7"], "error: --job: A has no job in set/gcn/7"),
        (["run", "A", "--nodes", "2"], "error: --nodes and --gpus-per-node go together"),
        (["run", "A", "--nodes", "2", "--gpus-per-node", "8"], "error: --nodes and --gpus-per-node go together, and"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(project: Path, argv: list[str], message: str, capsys: Capture) -> None:
    assert reproduce.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
    assert not order(project)


@pytest.mark.parametrize("argv", [["run", "A", "--jobs", "0"], ["plan", "A", "--seeds", "x"], ["run"]])
def test_numbers_are_checked_by_the_parser(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        reproduce.main(argv)
    assert stopped.value.code == 2


def test_results_elsewhere_have_their_whole_path(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("elsewhere")
    assert reproduce.main(["run", "A", "--only", "command=look", "--out", str(out)]) == 0
    assert (out / "commands/A/look/record.json").exists()
    assert order(project) == ["gcn/1", "look"]


def test_a_checkout_runs_its_own_package_where_the_environment_has_another_one(tmp_path: Path) -> None:
    for folder in ("run", "graphgps_kmip"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run/reproduce.py").write_text((REAL / "run/reproduce.py").read_text())
    (tmp_path / "graphgps_kmip/__init__.py").touch()
    (tmp_path / "graphgps_kmip/reproduce.py").write_text("def main():\n    print(__file__)\n")
    ran = python(tmp_path / "run/reproduce.py", env={**os.environ, "PYTHONPATH": str(REAL)})
    assert ran.stdout.split() == [str(tmp_path / "graphgps_kmip/reproduce.py")]


def test_jobs_import_the_package_of_the_checkout_that_starts_them(project: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONPATH", "others")
    for _ in range(2):
        assert reproduce.main(["plan", "A"]) == 0
        assert os.environ["PYTHONPATH"] == os.pathsep.join([str(project), "others"])
