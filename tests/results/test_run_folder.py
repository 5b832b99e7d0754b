"""Paths of a run folder, and what a failed write says."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_folder import best_or_newest, run_folders, writing


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "make it writable"),
    ],
)
def test_a_failed_write_is_one_line_with_what_where_and_how_to_fix_it(code: int, fix: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with (
        pytest.raises(RunFolderError, match=f"^Cannot write {path}: {os.strerror(code)}; .*{fix}") as error,
        writing(path),
    ):
        raise OSError(code, os.strerror(code))
    assert "\n" not in str(error.value)


def test_runs_are_folders_whose_names_are_whole_numbers_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "2", "agg", "2.old-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "3").write_text("a file")
    assert [path.name for path in run_folders(tmp_path)] == ["2", "10"]
    assert run_folders(tmp_path / "nowhere") == []


def test_the_checkpoint_of_the_best_epoch_comes_before_the_newest(tmp_path: Path) -> None:
    assert best_or_newest(tmp_path) is None
    (tmp_path / "ckpt").mkdir()
    for name in ("9", "10", "best"):
        (tmp_path / "ckpt" / f"{name}.ckpt").write_text("")
        assert best_or_newest(tmp_path).stem == name
