"""run/setup_env.sh, demo.sh and test.sh: a first, a second, a cut-off start, and the one line of what fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted(ROOT.glob("run/*.sh")), ROOT / ".ci/run"]
STEPS = 3  # pip and setuptools, torch, the others


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses(script):
    run(["bash", "-n", str(script)], check=True)


def test_the_first_start_installs_torch_before_the_packages_that_need_it(project):
    status, out, err = project.run("run/setup_env.sh")
    assert (status, err) == (0, "")
    assert [call.split()[-1] for call in project.calls] == ["setuptools", "torch", ".[test,tensorboard]"]
    assert all("-c constraints.txt" in call for call in project.calls)
    assert "torch==" in out
    assert project.run("run/setup_env.sh", FAKE_PIP="exit 1") == (0, "", ""), "the second start asks pip for nothing"
    assert len(project.calls) == STEPS


@pytest.mark.parametrize(("version", "name"), [("3.12", "python3.12"), ("3.13", "python3"), ("3.12", "python")])
def test_a_machine_whose_only_python_is_3_12_or_3_13_has_the_demo(project, version, name):
    (project.bin / "python3.11").rename(project.bin / name)
    status, out, err = project.run("run/demo.sh", FAKE_VERSION=version)
    assert (status, err) == (0, "")
    assert f"with Python {version} ..." in out
    assert "ran run/demo.py" in out


@pytest.mark.parametrize("name", ["constraints.txt", "setup.py", "pyproject.toml", "graphgps_kmip/__init__.py"])
def test_a_change_of_the_pins_or_the_packaging_updates_the_environment_in_place(project, name):
    project.run("run/setup_env.sh")
    (project.root / ".venv/mark").touch()
    with (project.root / name).open("a") as file:
        file.write('\n__version__ = "9"\n')
    project.run("run/setup_env.sh")
    assert len(project.calls) == 2 * STEPS
    assert (project.root / ".venv/mark").exists()
    project.run("run/setup_env.sh")
    assert len(project.calls) == 2 * STEPS


@pytest.mark.parametrize("cut", ["kill -9 $PPID", "exit 1"], ids=["killed", "failed"])
def test_an_install_that_was_cut_off_is_made_anew(project, cut):
    status, _, _ = project.run("run/setup_env.sh", FAKE_PIP=f'case "$*" in *" torch") {cut} ;; esac')
    assert status != 0
    (project.root / ".venv/mark").touch()
    status, out, _ = project.run("run/setup_env.sh")
    assert status == 0
    assert "unfinished" in out
    assert not (project.root / ".venv/mark").exists()
    assert len(project.calls) == 2 + STEPS


def test_an_environment_that_is_not_ours_is_moved_aside_and_kept(project):
    for n in (1, 2):
        (project.root / ".venv").mkdir()
        (project.root / ".venv/mine").touch()
        status, out, _ = project.run("run/setup_env.sh")
        assert status == 0
        assert f".venv.old-{n}" in out
        assert (project.root / f".venv.old-{n}/mine").exists()
        (project.root / ".venv").rename(project.root / f"ours-{n}")


@pytest.mark.parametrize(
    ("script", "command"), [("run/demo.sh", "run/demo.py --compare a b"), ("run/test.sh", "-m pytest --compare a b")]
)
def test_a_command_works_from_any_folder_and_through_a_symlink(project, tmp_path, script, command):
    link = tmp_path / "link"
    os.symlink(project.root / script, link)
    for path in (script, link):
        status, out, err = project.run(path, "--compare", "a b", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert out.splitlines()[-1] == f"ran {command} in {project.root}"


def test_quick_runs_a_selection_whose_files_are_there_and_passes_on_what_follows(project):
    status, out, err = project.run("run/test.sh", "--quick", "-k", "gcn")
    assert (status, err) == (0, "")
    argv = out.splitlines()[-1].removeprefix("ran -m pytest ").removesuffix(f" in {project.root}").split()
    assert argv[-2:] == ["-k", "gcn"]
    places = [word.removeprefix("--ignore=") for word in argv if "tests/" in word]
    assert {"tests/attention", "tests/mpnn", "tests/model", "tests/gym/test_load.py"} <= set(places)
    assert [place for place in places if not (ROOT / place.split("::")[0]).exists()] == []
    for place in places:
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() if name else True


def test_thorough_runs_everything_that_is_not_slow_and_ci_runs_it(project):
    status, out, err = project.run("run/test.sh", "--thorough", "-k", "gcn")
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].endswith(f" -m not slow -k gcn in {project.root}")
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "bash run/test.sh --thorough"


def test_the_exit_status_is_that_of_the_command(project):
    project.fake("python3.11", (project.bin / "python3.11").read_text().replace('echo "ran $* in $PWD"', "exit 7"))
    assert project.run("run/test.sh")[0] == 7
    assert project.run("run/demo.sh")[0] == 7


def error_of(project, script="run/demo.sh", **env):
    status, _, err = project.run(script, **env)
    assert status == 1
    assert len(err.splitlines()) == 1, err
    return err


def pip_says(text, at="torch"):
    """A pip that fails with this text when it is asked for the package `at`."""
    return f'case "$*" in *"{at}"*) cat <<"END"\n{text}\nEND\nexit 1 ;; esac'


@pytest.mark.parametrize("script", ["run/demo.sh", "run/test.sh", "run/setup_env.sh"])
def test_without_a_python_that_fits_the_error_names_what_was_found_and_how_to_get_it(project, script):
    (project.bin / "python3.11").rename(project.bin / "python3")
    err = error_of(project, script, FAKE_VERSION="3.9")
    missing = "python3.11 is missing, python3.12 is missing, python3.13 is missing"
    assert f"Python 3.11, 3.12 or 3.13 is needed, but {missing}, python3 is 3.9, python is missing" in err
    assert "apt install python3.11" in err
    assert "PYTHON=" in err


def test_the_python_that_is_named_is_the_only_one_tried(project):
    assert "but /no/such is missing:" in error_of(project, PYTHON="/no/such")
    assert project.calls == []
    (project.bin / "python3.11").rename(project.bin / "mine")
    assert project.run("run/demo.sh", PYTHON=str(project.bin / "mine"))[0] == 0


def test_without_the_venv_module_the_error_names_its_package(project):
    assert "apt install python3.12-venv)" in error_of(project, FAKE_VENV="1", FAKE_VERSION="3.12")


@pytest.mark.parametrize("version", ["3.10", "3.14"])
def test_a_python_without_wheels_for_the_pins_is_refused(project, version):
    assert f"python3.11 is {version}" in error_of(project, FAKE_VERSION=version)
    assert not (project.root / ".venv").exists()


def test_what_pip_says_becomes_one_line(project):
    text = "WARNING: a try\nERROR: something else\n"
    err = error_of(project, FAKE_PIP=pip_says(text, at=" torch"))
    assert "torch==" in err
    assert "failed: ERROR: something else (see " in err
    assert text.splitlines()[0] in (project.root / ".venv/install.log").read_text()
