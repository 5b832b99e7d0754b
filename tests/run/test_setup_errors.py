"""What run/setup_env.sh says when it cannot go on: one line with what failed and what to do."""

from __future__ import annotations

import pytest

CONFLICT = """ERROR: Cannot install torch because these package versions have conflicting dependencies.

Additionally, some packages in these conflicts have no matching distributions available for your environment:
    torch

ERROR: ResolutionImpossible: for help visit the pages of pip"""
RETRYING = "WARNING: Retrying (Retry(total=4)) after connection broken by NewConnectionError"
DF = "#!/usr/bin/env bash\necho head\necho 'disk 9999999 9000000 100000 99% /'\n"


def error_of(project, script="run/demo.sh", **env):
    """Runs a script that must fail, and returns its one line."""
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


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_without_the_venv_module_the_error_names_its_package(project, version):
    assert f"apt install python{version}-venv)" in error_of(project, FAKE_VENV="1", FAKE_VERSION=version)


@pytest.mark.parametrize("version", ["3.10", "3.14", "4.11"])
def test_a_python_without_wheels_for_the_pins_is_refused(project, version):
    assert f"python3.11 is {version}" in error_of(project, FAKE_VERSION=version)
    assert not (project.root / ".venv").exists()


def test_without_disk_space_nothing_is_begun(project):
    project.fake("df", DF)
    err = error_of(project)
    assert "no disk space" in err
    assert "97 MB free" in err
    assert not (project.root / ".venv").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{RETRYING}\n{CONFLICT}", ["registry cannot be reached for torch==", "PIP_INDEX_URL", "install.log"]),
        (CONFLICT, ["no wheel of torch for", "PIP_FIND_LINKS", "install.log"]),
        ("ERROR: Could not install: [Errno 28] No space left on device", ["no disk space for torch==", "TMPDIR"]),
        ("ERROR: something else\n", ["torch==", "failed: ERROR: something else", "VERBOSE=1"]),
    ],
    ids=["no registry", "no wheel", "disk full", "other"],
)
def test_what_pip_says_becomes_one_line(project, text, words):
    err = error_of(project, FAKE_PIP=pip_says(text, at=" torch"))
    assert [word for word in words if word not in err] == []
    assert text.splitlines()[0] in (project.root / ".venv/install.log").read_text()


def test_verbose_shows_what_pip_says(project):
    status, out, _ = project.run("run/setup_env.sh", VERBOSE="1", FAKE_PIP=pip_says(CONFLICT, at=" torch"))
    assert status == 1
    assert CONFLICT in out


def test_a_folder_that_cannot_be_written_is_named(project):
    (project.root / ".venv.lock").mkdir()  # a folder in the lock's place: refused to the superuser too
    assert f"cannot write in {project.root}" in error_of(project)
