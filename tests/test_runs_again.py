"""The command line over results that are there already: finished, interrupted, damaged, in use, on a full disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import main
from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.gym import experiment
from tests.processes import preloaded_at_once, python
from tests.test_main import DIGITS, SHORT

pytestmark = pytest.mark.usefixtures("few_digits")

ROOT = Path(__file__).parents[1]
NO_CHECKPOINT = ["train.enable_ckpt", "False"]


def run(out: Path, *argv: str, flags: tuple[str, ...] = ()) -> int:
    return main.run(["--cfg", DIGITS, *flags, "out_dir", str(out), *SHORT, *argv])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with seeds 0 and 1 of two epochs each, to be copied, never changed."""
    out = tmp_path_factory.mktemp("finished")
    assert run(out, "optim.max_epoch", "2", flags=("--repeat", "2")) == 0
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "results")
    return tmp_path / "results"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.mark.parametrize("auto_resume", ["True", "False"])
def test_a_start_that_waited_for_the_lock_of_another_leaves_its_finished_run_as_it_is(
    auto_resume: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(out)
    monkeypatch.setattr(experiment, "_is_finished", lambda *_: False)  # what it saw before it had the lock
    assert run(out, "optim.max_epoch", "2", "train.auto_resume", auto_resume) == 0
    assert capsys.readouterr().out.count("is not repeated") == 1
    after = contents(out)
    assert {name for name in before if after[name] != before[name]} <= {
        f"digits-kmip/agg/{split}/{name}.json" for split in ("train", "val", "test") for name in ("best", "stats")
    }


@pytest.mark.parametrize(("key", "value"), [("name_tag", "../../x"), ("cfg_dest", "/tmp/config.yaml")])
def test_a_name_that_leads_out_of_its_folder_is_refused_before_anything_is_written(
    key: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "a" / "b", key, value) == 2
    assert f"{key}: expected a plain name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_config_of_another_name_is_found_again(tmp_path: Path) -> None:
    from graphgps_kmip.gym.trained import trained

    assert run(tmp_path, "cfg_dest", "mine.yaml") == 0
    run_dir = tmp_path / "digits-kmip" / "0"
    assert not (run_dir / "config.yaml").exists()
    with trained(run_dir) as finished_run:
        assert finished_run.facts["dataset"] == "digits"


# The second process waits for the first however busy the machine is, and a picture takes a second to be written.
AT_ONCE = """
import functools, os, sys, time
import main
from graphgps_kmip.gym import experiment
experiment.locked = functools.partial(experiment.locked, wait=-1)
replace = os.replace
def slow(source, target):
    if str(target).endswith(".png"):
        time.sleep(1)
    replace(source, target)
os.replace = slow
sys.exit(main.run(sys.argv[1:]))
"""


def test_the_same_run_started_twice_at_once_ends_well_in_both_processes(tmp_path: Path) -> None:
    argv = ["--cfg", DIGITS, "out_dir", str(tmp_path / "out"), *SHORT, "dataset.sample", "True"]
    for done in preloaded_at_once(2, "-c", AT_ONCE, *argv):
        assert done.returncode == 0, done.stderr
    folder = tmp_path / "out-sample/digits-kmip"
    assert (folder / "0/curves.png").exists()
    assert json.loads((folder / "agg/test/best.json").read_text())["runs"] == 1
    assert not list(folder.rglob("*.tmp"))


def failing(name: str, code: int) -> Callable:
    def refuse(path: Path, content: bytes) -> None:
        if path.name == name:
            raise OSError(code, os.strerror(code), str(path))
        replace_file(path, content)

    return refuse


# file -> the module that writes it
WRITERS = {
    "record.json": "graphgps_kmip.results.run_record",
    "config.yaml": "graphgps_kmip.gym.experiment",
    "attention.npz": "graphgps_kmip.gym.attention_saving",
    "curves.png": "graphgps_kmip.report.learning_curves",
    "best.json": "graphgps_kmip.results.run_record",
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_with_the_file_and_earlier_runs_are_unchanged(
    name: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(out)
    argv = ["optim.max_epoch", "2", "seed", "5", *NO_CHECKPOINT]
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[WRITERS[name]], "replace_file", failing(name, errno.ENOSPC))
        assert run(out, *argv) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{name}: {os.strerror(errno.ENOSPC)}; " in error
    assert contents(out).items() >= before.items()
    assert not list(out.rglob("*.tmp"))
    assert run(out, *argv) == 0  # and once there is room, the same command ends well
    assert json.loads((out / "digits-kmip/agg/test/best.json").read_text())["runs"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [1, 20])
def test_a_limit_on_file_sizes_ends_a_run_in_one_line_at_whichever_file_is_first(
    kilobytes: int, tmp_path: Path
) -> None:
    code = (
        "import resource, sys; import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes} * 1024,) * 2)\n"
        "sys.exit(main.run(sys.argv[1:]))"
    )
    argv = ["--cfg", DIGITS, "out_dir", str(tmp_path), *SHORT, "train.ckpt_period", "1"]
    done = python("-c", code, *argv)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "File too large" in lines[0]
    assert "Traceback" not in done.stderr
