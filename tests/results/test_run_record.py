"""record.json and stats.json: a damaged record counts as none, a damaged line is named, a cut-off end is left out."""

from __future__ import annotations

import ast
import errno
import json
import os
from pathlib import Path

import pytest

import graphgps_kmip
from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.results.run_record import (
    append_stats,
    read_record,
    read_run,
    read_stats,
    rounded,
    trim_stats,
    write_record,
    write_stats,
)
from graphgps_kmip.train import prepare_run_dir
from tests.results.damages import DAMAGES

RECORD = {
    "finished": True,
    "config_hash": "h",
    "peak_memory": {"cpu": 7},
    "best": {"epoch": 1, "value": float("nan"), "val": {"epoch": 1, "loss": float("nan"), "accuracy": 0.5}},
}


def test_a_record_is_read_as_it_was_written_nan_included(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert json.dumps(read_record(tmp_path)) == json.dumps(RECORD)
    assert read_record(tmp_path / "nowhere") is None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("auto_resume", [False, True])
def test_a_damaged_record_counts_as_none_and_a_training_moves_its_run_aside(
    damage: str, auto_resume: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0").mkdir()
    write_record(tmp_path / "0", RECORD)
    assert prepare_run_dir(tmp_path / "0", "h", auto_resume=auto_resume) == "finished"
    DAMAGES[damage](tmp_path / "0" / "record.json")
    caplog.clear()
    assert read_record(tmp_path / "0") is None
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}/0/record.json is damaged (")
    assert "restore the file" in line
    assert prepare_run_dir(tmp_path / "0", "h", auto_resume=auto_resume) == "run"
    assert (tmp_path / "0.old-1" / "record.json").exists()
    assert read_record(tmp_path / "0") == {"finished": False, "config_hash": "h", "resumes": 0}


def test_no_other_module_names_the_file_and_so_reads_it_by_itself() -> None:
    package = Path(graphgps_kmip.__file__).parent
    files = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value == "record.json"
    }
    assert files == {"results/run_folder.py"}


def line(epoch: int, **values: object) -> dict:
    return {"epoch": epoch, "loss": 0.5, "accuracy": 0.25, **values}


def write_lines(run_dir: Path, *lines: dict | str) -> Path:
    path = run_dir / "val" / "stats.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((text if isinstance(text, str) else json.dumps(text)) + "\n" for text in lines))
    return path


@pytest.mark.parametrize("wrong", ["", '{"loss": 1}', '{"epoch": "1"}', "[]", '{"epoch": 1, "lo', "\x00\x00"])
def test_a_wrong_line_is_named_and_nothing_is_trimmed(wrong: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path, line(0), wrong, line(2))
    before = path.read_bytes()
    for read in (lambda: read_run(tmp_path), lambda: trim_stats(tmp_path, 0)):
        with pytest.raises(ResultsError, match=r"val/stats\.json, line 2 is not a JSON line .*; restore the file"):
            read()
    assert path.read_bytes() == before


@pytest.mark.parametrize("end", [b'{"epoch": 2, "lo', bytes(100), b"\xff"])
def test_what_follows_the_last_end_of_line_was_cut_off_and_is_left_out(end: bytes, tmp_path: Path) -> None:
    path = write_lines(tmp_path, line(0, accuracy=float("nan")), line(1), line(2))
    path.write_bytes(path.read_bytes() + end)
    assert list(read_stats(tmp_path, "val")) == [0, 1, 2]
    trim_stats(tmp_path, 1)
    assert path.read_text() == "".join(json.dumps(kept) + "\n" for kept in (line(0, accuracy=float("nan")), line(1)))
    assert os.listdir(tmp_path / "val") == ["stats.json"]


def test_of_two_lines_for_one_epoch_the_later_holds(tmp_path: Path) -> None:
    write_stats(tmp_path, "val", line(1), line(0), line(1, accuracy=0.5))
    assert read_run(tmp_path) == {"val": {0: line(0), 1: line(1, accuracy=0.5)}}


def test_a_disk_that_is_full_leaves_the_earlier_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_stats(tmp_path, "val", line(0))
    before = (tmp_path / "val" / "stats.json").read_bytes()

    class Full:
        """Takes a part of what is written, as a full disk does."""

        def __init__(self, path: Path) -> None:
            self.path = path

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, text: str) -> None:
            with self.path.open("a") as file:
                file.write(text[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("graphgps_kmip.results.run_record.open", lambda path, *_, **__: Full(path), raising=False)
    with pytest.raises(RunFolderError, match=r"^Cannot write .*val/stats.json: No space left .*; make room"):
        append_stats(tmp_path, "val", line(1))
    assert (tmp_path / "val" / "stats.json").read_bytes() == before


def test_numbers_keep_their_significant_digits() -> None:
    assert rounded({"loss": 1234.56789, "lr": 1.23456789e-9, "params": 1234567, "epoch": 0}, 6) == {
        "loss": 1234.57,
        "lr": 1.23457e-9,
        "params": 1234567,
        "epoch": 0,
    }
