"""record.json and stats.json: damage, which runs of a results folder count, and which of their epochs is the best."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.report.aggregate import aggregate
from graphgps_kmip.report.comparison import comparison
from graphgps_kmip.results.best_epoch import best_epoch, is_better
from graphgps_kmip.results.run_record import (
    append_stats,
    read_record,
    read_run,
    read_run_config,
    read_stats,
    rounded,
    trim_stats,
    write_record,
    write_stats,
)
from graphgps_kmip.train.run_recording import prepare_run_dir
from tests.results.damages import DAMAGES

Patch, Logs = pytest.MonkeyPatch, pytest.LogCaptureFixture
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
def test_a_damaged_record_counts_as_none(damage: str, auto_resume: bool, tmp_path: Path, caplog: Logs) -> None:
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
    assert path.read_text() == "".join(json.dumps(text) + "\n" for text in (line(0, accuracy=float("nan")), line(1)))
    assert os.listdir(tmp_path / "val") == ["stats.json"]


def test_of_two_lines_for_one_epoch_the_later_holds(tmp_path: Path) -> None:
    write_stats(tmp_path, "val", line(1), line(0), line(1, accuracy=0.5))
    assert read_run(tmp_path) == {"val": {0: line(0), 1: line(1, accuracy=0.5)}}


def test_a_disk_that_is_full_leaves_the_earlier_lines(tmp_path: Path, monkeypatch: Patch) -> None:
    append_stats(tmp_path, "val", line(0))
    before = (tmp_path / "val" / "stats.json").read_bytes()

    class Full:
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


NAN, INF = float("nan"), float("inf")


def finished(out_dir: Path, seed: int, epochs: int = 3, **changes: Any) -> Path:
    """Write a finished run as training does: statistics of each epoch, and a record of its best one, the last."""
    run_dir = out_dir / str(seed)
    lines = [{"epoch": epoch, "loss": 1.0 / (epoch + 1), "accuracy": 0.1 * epoch} for epoch in range(epochs)]
    for split in ("train", "val", "test"):
        (run_dir / split).mkdir(parents=True)
        (run_dir / split / "stats.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"finished": True, "config_hash": f"h{seed}", "experiment": "e", "seed": seed, "epochs": epochs}
    record |= {"params": 7, "seconds_per_epoch": 1.0, "metric_best": "accuracy"}
    record |= {"best": {"epoch": epochs - 1, "value": lines[-1]["accuracy"], "val": lines[-1], "test": lines[-1]}}
    (run_dir / "record.json").write_text(json.dumps(record | changes))
    (run_dir / "config.yaml").write_text("gt: {layers: 3}\n")
    return run_dir


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_of_another_seed_is_left_out(damage: str, tmp_path: Path, caplog: Logs) -> None:
    finished(tmp_path, 0)
    DAMAGES[damage](finished(tmp_path, 1) / "record.json")
    aggregate(tmp_path, "accuracy", "argmax", "e")
    assert json.loads((tmp_path / "agg/test/best.json").read_text())["runs"] == 1
    assert "accuracy" in comparison([tmp_path], 1)
    assert caplog.text.count("1/record.json is damaged") == 2  # with either table


def test_lost_lines_of_a_finished_run_are_noticed_in_the_table(tmp_path: Path) -> None:
    path = finished(tmp_path, 0, epochs=4) / "train" / "stats.json"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(ResultsError, match=r"train/stats.json lacks epoch 2 of a finished run; restore"):
        aggregate(tmp_path, "accuracy", "argmax", "e")
    assert not (tmp_path / "agg").exists()


@pytest.mark.parametrize("content", [None, b"", b"gt: [", b"- a\n"])
def test_a_config_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ResultsError, match=r"config\.yaml"):
        read_run_config(tmp_path)
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    assert read_run_config(tmp_path, {"config_file": "mine.yaml"}) == {"a": 1}


def run_of(values: tuple[Any, ...]) -> dict:
    return {"val": {epoch: {"epoch": epoch, "loss": 0.0, "f1": value} for epoch, value in enumerate(values)}}


@pytest.mark.parametrize("agg", ["argmax", "argmin"])
def test_training_and_tables_choose_the_same_epoch_of_all_sequences_and_it_is_finite_if_one_is(agg: str) -> None:
    for values in itertools.product((0.5, 0.7, NAN, INF, -INF), repeat=4):
        best, choice = None, None  # as the training loop keeps them
        for epoch, value in enumerate(values):
            if is_better(value, best, agg == "argmax"):
                best, choice = value, epoch
        assert best_epoch(run_of(values), "f1", agg) == choice, values
        finite = [value for value in values if math.isfinite(value)]
        extremum = (max(finite) if agg == "argmax" else min(finite)) if finite else values[0]
        assert choice == values.index(extremum), values


@pytest.mark.parametrize(
    ("run", "message"),
    [(run_of(("0.5", "0.7")), "no 'f1'"), ({}, "no line; train it again"), ({"val": {}}, "no line; train it again")],
)
def test_statistics_without_a_best_epoch_are_an_error(run: dict, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        best_epoch(run, "f1")
