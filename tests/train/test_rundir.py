from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train import run_recording
from graphgps_kmip.train.run_recording import prepare_run_dir
from tests.processes import HANGS
from tests.train.toy import run


def make_run(run_dir: Path, config_hash: str = "a", finished: bool = False) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "mark").write_text("earlier")
    (run_dir / "record.json").write_text(json.dumps({"finished": finished, "config_hash": config_hash}))


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_run_gets_a_folder_with_an_open_record(exists: bool, tmp_path: Path) -> None:
    run_dir = tmp_path / "config" / "0"
    if exists:
        run_dir.mkdir(parents=True)
    assert prepare_run_dir(run_dir, "a") == "run"
    assert read_record(run_dir) == {"finished": False, "config_hash": "a", "resumes": 0}
    assert list(run_dir.parent.glob("0*")) == [run_dir]


def test_a_finished_run_is_not_repeated_and_the_message_names_overwrite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path / "0", finished=True)
    assert prepare_run_dir(tmp_path / "0", "a", auto_resume=True) == "finished"
    assert "--overwrite" in caplog.text
    assert (tmp_path / "0" / "mark").read_text() == "earlier"


def test_an_unfinished_run_is_resumed_only_if_asked_and_of_the_same_configuration(tmp_path: Path) -> None:
    make_run(tmp_path / "0")
    assert prepare_run_dir(tmp_path / "0", "a", auto_resume=True) == "resume"
    assert (tmp_path / "0" / "mark").exists()


@pytest.mark.parametrize(
    ("config_hash", "finished", "options"),
    [
        ("a", True, {"overwrite": True}),
        ("a", False, {}),
        ("a", False, {"overwrite": True, "auto_resume": True}),
        ("b", True, {"auto_resume": True}),
        ("b", False, {"auto_resume": True}),
    ],
)
def test_anything_else_is_moved_aside_and_never_deleted(
    config_hash: str, finished: bool, options: dict, tmp_path: Path
) -> None:
    run_dir = tmp_path / "0"
    (tmp_path / "0.old-1").mkdir()
    (tmp_path / "0.old-3").mkdir()
    make_run(run_dir, config_hash, finished)
    assert prepare_run_dir(run_dir, "a", **options) == "run"
    assert (tmp_path / "0.old-2" / "mark").read_text() == "earlier"
    assert [path.name for path in run_dir.iterdir()] == ["record.json"]


def test_a_place_that_cannot_be_written_gives_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="^Cannot write .*; set another out_dir") as error:
        prepare_run_dir(tmp_path / "file" / "0", "a")
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)


def test_a_second_process_does_not_get_the_folder_until_the_first_is_gone(tmp_path: Path) -> None:
    make_run(tmp_path / "0")
    code = "import sys, filelock as f; x = f.FileLock(sys.argv[1]); x.acquire(); print('held', flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / ".0.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match="in use by another process"):
            prepare_run_dir(tmp_path / "0", "a", wait=0.1)
        assert (tmp_path / "0" / "mark").exists()
        other.kill()
        other.wait(HANGS)
    assert prepare_run_dir(tmp_path / "0", "a") == "run"


def test_a_record_has_the_code_that_was_there_when_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ["at its beginning"]
    monkeypatch.setattr(run_recording, "code_version", lambda: versions[-1])
    assert run(tmp_path, hook=lambda _: versions.append("pulled meanwhile"))["code_version"] == "at its beginning"
