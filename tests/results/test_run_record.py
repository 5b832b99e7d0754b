"""record.json: what is damaged counts as no record, everywhere, and one line says so."""

from __future__ import annotations

import ast
import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import graphgps_kmip
from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_record import CHECKS, examine_record, read_record, write_record
from graphgps_kmip.train import prepare_run_dir
from tests.results.damages import DAMAGES, refuse_reading

RECORD = {
    "finished": True,
    "config_hash": "h",
    "experiment": "e",
    "resumes": 0,
    "seed": 3,
    "wall_time": 1.5,
    "finished_at": "2026-01-02T03:04:05+00:00",
    "peak_memory": {"cpu": 7},
    "best": {"epoch": 1, "value": float("nan"), "val": {"epoch": 1, "loss": float("nan"), "accuracy": 0.5}},
}


def test_a_record_is_read_as_it_was_written_nan_included(tmp_path: Path) -> None:
    write_record(tmp_path, RECORD)
    assert json.dumps(read_record(tmp_path)) == json.dumps(RECORD)
    assert read_record(tmp_path / "nowhere") is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_counts_as_none_and_one_line_names_file_and_fix(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_record(tmp_path, RECORD)
    DAMAGES[damage](tmp_path / "record.json")
    with caplog.at_level(logging.WARNING):
        assert read_record(tmp_path) is None
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"{tmp_path}/record.json is damaged (" in line
    assert "restore the file" in line
    assert "\n" not in line


@pytest.mark.parametrize("key", CHECKS)
@pytest.mark.parametrize("value", [[], "x", -1, 1.5, None, True, {"epoch": "a"}, {"test": 3}], ids=repr)
def test_a_value_of_a_wrong_type_is_damage_that_is_named(key: str, value: Any, tmp_path: Path) -> None:
    if CHECKS[key][0](value):
        return
    (tmp_path / "record.json").write_text(json.dumps(RECORD | {key: value}))
    record, damage = examine_record(tmp_path)
    assert record is None
    assert damage.startswith(f"{key} is ")


def test_a_wrong_type_of_every_key_is_among_those_tried() -> None:
    tried = [[], "x", -1, 1.5, None, True, {"epoch": "a"}, {"test": 3}]
    assert all(any(not check(value) for value in tried) for check, _ in CHECKS.values())


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_record_that_the_system_does_not_let_us_read_is_an_error_for_it_may_be_a_result(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(tmp_path, RECORD)
    refuse_reading(monkeypatch, "record.json", code)
    with pytest.raises(RunFolderError, match=r"^Cannot read .*record.json: .*; make it readable"):
        read_record(tmp_path)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("auto_resume", [False, True])
def test_a_training_moves_a_run_with_a_damaged_record_aside(damage: str, auto_resume: bool, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    write_record(tmp_path / "0", RECORD)
    assert prepare_run_dir(tmp_path / "0", RECORD["config_hash"], auto_resume=auto_resume) == "finished"
    DAMAGES[damage](tmp_path / "0" / "record.json")
    assert prepare_run_dir(tmp_path / "0", RECORD["config_hash"], auto_resume=auto_resume) == "run"
    assert (tmp_path / "0.old-1" / "record.json").exists()
    assert read_record(tmp_path / "0") == {"finished": False, "config_hash": RECORD["config_hash"], "resumes": 0}


def test_no_other_module_names_the_file_and_so_reads_it_by_itself() -> None:
    package = Path(graphgps_kmip.__file__).parent
    named = {
        file.relative_to(package).as_posix()
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value == "record.json"
    }
    assert named == {"results/run_folder.py"}
