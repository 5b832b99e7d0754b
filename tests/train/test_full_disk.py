"""A disk that is full, or fails, ends a run with one line; what was there before is unchanged, and the run goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphgps_kmip.common import atomic_write as files
from graphgps_kmip.common.torch_files import save_plain
from graphgps_kmip.errors import RunError
from graphgps_kmip.results import run_record
from graphgps_kmip.results.run_record import read_record
from graphgps_kmip.train import checkpoint as checkpoints
from graphgps_kmip.train.run_recording import prepare_run_dir
from tests.train.toy import read_stats, run


def failing(after: int, code: int, call: Callable) -> Callable:
    """Return `call`, which fails as the operating system does from the given call on."""
    calls = []

    def refuse(*arguments: object, **options: object) -> object:
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(code, os.strerror(code), str(arguments[0]))
        return call(*arguments, **options)

    return refuse


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder)
    return folder


CODES = (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT)


@pytest.mark.parametrize(("code", "split"), list(zip(CODES, ("train", "val", "test", "train", "val"), strict=True)))
def test_statistics_that_cannot_be_written_end_the_run_with_one_line_and_it_goes_on_bit_for_bit(
    code: int, split: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = 3 * 3 + ("train", "val", "test").index(split)  # in the fourth epoch
    with monkeypatch.context() as patched:
        patched.setattr(run_record, "open", failing(after, code, open), raising=False)
        with pytest.raises(RunError) as error:
            run(tmp_path / "cut", ckpt_period=100)
    text = str(error.value)
    assert "\n" not in text
    assert f"Cannot write {tmp_path}/cut/{split}/stats.json: {os.strerror(code)}; " in text
    assert not read_record(tmp_path / "cut")["finished"]
    run(tmp_path / "cut", auto_resume=True)
    for name in ("train", "val", "test"):
        assert read_stats(tmp_path / "cut", name) == read_stats(whole, name)


def test_what_was_reached_is_saved_where_only_one_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = run_record.append_stats

    def refuse(run_dir: Path, split: str, stats: dict) -> None:
        if split == "val" and stats["epoch"] == 3:
            (run_dir / "val" / "stats.json").chmod(0o400)
            monkeypatch.setattr(run_record, "open", failing(0, errno.EACCES, open), raising=False)
        append(run_dir, split, stats)

    monkeypatch.setattr("graphgps_kmip.train.reporter.append_stats", refuse)
    monkeypatch.setattr("graphgps_kmip.train.checkpoint.sync_stats", lambda _: None)
    with pytest.raises(RunError, match=r"the last good checkpoint is .*ckpt/2\.ckpt; train\.auto_resume True"):
        run(tmp_path, ckpt_period=100)


@pytest.mark.parametrize("moment", ["opening", "closing"])
def test_a_record_that_cannot_be_written_stays_readable(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_run_dir(tmp_path / "0", "toy")
    before = read_record(tmp_path / "0")
    refused = failing(moment == "closing", errno.ENOSPC, files.replace_file)
    monkeypatch.setattr(run_record, "replace_file", refused)
    with pytest.raises(RunError, match=r"^Cannot write .*record.json: No space left on device; make room") as error:
        run(tmp_path / "0", max_epoch=2)
    assert "\n" not in str(error.value)
    opened = {"code_version"} if moment == "closing" else set()
    assert {key: value for key, value in read_record(tmp_path / "0").items() if key not in opened} == before
    assert not list((tmp_path / "0").glob("*.tmp"))


def test_a_checkpoint_that_cannot_be_written_leaves_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "save_plain", failing(2, errno.ENOSPC, save_plain))
    with pytest.raises(RunError, match=r"2\.ckpt: No space left on device; make room"):
        run(tmp_path, ckpt_clean=False)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir()) == ["0.ckpt", "1.ckpt"]
