"""Where our own configs are found: after those of the working directory, beside the package or in the wheel."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import main
from graphgps_kmip.common import environment
from graphgps_kmip.common.environment import find_config
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Training
from graphgps_kmip.experiments.jobs import Place, command_job, command_line, training_job
from graphgps_kmip.gym.planned_runs import planned_hash

ROOT = Path(__file__).parents[1]
DIGITS = Path("configs/quickstart/digits-kmip.yaml")
SHORT = ["optim.max_epoch", "1", "gt.layers", "1"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_our_own_config_is_read_where_there_is_no_local_one_and_the_log_says_so(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["--cfg", str(DIGITS), *SHORT]) == 0
    assert f"{DIGITS}: no such file here, the package's own is read: {ROOT / DIGITS}\n" in capsys.readouterr().out
    assert (elsewhere / "results/digits-kmip/0/record.json").exists()


def test_a_local_config_wins_and_only_names_below_configs_are_looked_for_among_our_own(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (elsewhere / DIGITS).parent.mkdir(parents=True)
    shutil.copy(ROOT / DIGITS, elsewhere / DIGITS)
    with caplog.at_level(logging.INFO):
        for name in (DIGITS, "quickstart/digits-kmip.yaml", "digits-kmip.yaml", "/configs/quickstart/no.yaml"):
            assert find_config(Path(name)) == Path(name)
    assert caplog.text == ""


@pytest.mark.usefixtures("elsewhere")
def test_a_misspelt_config_of_ours_has_near_misses_elsewhere_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--cfg", "configs/quickstart/digits-kmpi.yaml"]) == 2
    assert "Did you mean digits-kmip.yaml" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_our_own_config_is_never_renamed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--cfg", str(DIGITS), "--mark_done", *SHORT]) == 2
    assert "--mark_done: " in capsys.readouterr().err
    assert (ROOT / DIGITS).exists()
    assert not Path("results").exists()


def test_a_config_has_the_same_hash_from_wherever_it_is_planned(elsewhere: Path) -> None:
    argv = ["--cfg", str(DIGITS), "seed", "0"]
    assert planned_hash(argv, elsewhere) == planned_hash(argv, ROOT)


def test_jobs_of_an_installed_package_run_its_modules_and_its_own_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(environment, "SHIPPED", tmp_path)
    place = Place(Path("/work"), Path("results"), lambda _: "", shipped=tmp_path)
    job = training_job(Training({}, "quickstart/digits-kmip.yaml", (0,)), 0, place)
    assert job.arguments[:4] == ("-m", "graphgps_kmip", "--cfg", "configs/quickstart/digits-kmip.yaml")
    assert command_line(job).startswith("graphgps-kmip --cfg configs/")
    look = Command("look", "run/analyse.py graphs --out {out}", "run/analyse.py", ("a",))
    job = command_job(look, Experiment("A", "A"), place)
    assert job.arguments[0] == str(tmp_path / "run/analyse.py")
    assert job.arguments[-1] == "results/commands/A/look"
    bench = Command("bench", "run/bench/tree.py --out {out}", "run/bench/tree.py", ("a",))
    assert command_job(bench, Experiment("A", "A"), place).arguments[:2] == (
        "-m",
        f"graphgps_kmip.{tmp_path.name}.run.bench.tree",
    )
    here = command_job(bench, Experiment("A", "A"), Place(Path("/work"), Path("results"), lambda _: ""))
    assert here.arguments == ("-m", "run.bench.tree", "--out", "results/commands/A/bench")


@pytest.mark.parametrize("installed", [True, False])
def test_a_message_names_the_command_that_the_user_has(
    installed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "SHIPPED", tmp_path if installed else tmp_path / "nothing")
    assert main.run(["--cfg", str(ROOT / DIGITS), "gt.layer_type", "GatedGCN+qqqq"]) == 2
    command = "graphgps-kmip" if installed else "python main.py"
    assert f"`{command} --list` shows all." in capsys.readouterr().err
