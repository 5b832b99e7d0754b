"""Which runs of a results folder count, that their statistics are whole, and which of their epochs is the best."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report import aggregate, check_results
from graphgps_kmip.report.comparison import comparison
from graphgps_kmip.results.best_epoch import best_epoch, is_better
from graphgps_kmip.results.run_record import finished_runs, read_run_config
from tests.results.damages import DAMAGES

NAN, INF = float("nan"), float("inf")


def finished(out_dir: Path, seed: int, epochs: int = 3, **changes: Any) -> Path:
    """Write a finished run as training does: statistics of each epoch, and a record of its best one, the last."""
    run_dir = out_dir / str(seed)
    lines = [{"epoch": epoch, "loss": 1.0 / (epoch + 1), "accuracy": 0.1 * epoch} for epoch in range(epochs)]
    for split in ("train", "val", "test"):
        (run_dir / split).mkdir(parents=True)
        (run_dir / split / "stats.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = {"finished": True, "config_hash": f"h{seed}", "experiment": "e", "seed": seed, "max_epoch": epochs}
    record |= {"params": 7, "seconds_per_epoch": 1.0, "metric_best": "accuracy"}
    record |= {"best": {"epoch": epochs - 1, "value": lines[-1]["accuracy"], "val": lines[-1], "test": lines[-1]}}
    (run_dir / "record.json").write_text(json.dumps(record | changes))
    (run_dir / "config.yaml").write_text("gt: {layers: 3}\n")
    return run_dir


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_of_another_seed_costs_neither_table_nor_comparison(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finished(tmp_path, 0)
    DAMAGES[damage](finished(tmp_path, 1) / "record.json")
    check_results(tmp_path, "accuracy", "argmax", "e")
    aggregate(tmp_path, "accuracy", "argmax", "e")
    assert json.loads((tmp_path / "agg/test/best.json").read_text())["runs"] == 1
    assert caplog.text.count("1/record.json is damaged") == 2  # before training, and with the table
    assert "accuracy" in comparison([tmp_path], 1)


def test_a_copied_run_is_not_counted_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finished(tmp_path, 0)
    finished(tmp_path, 1, config_hash="h0")
    records, others = finished_runs(tmp_path, "e")
    assert ([folder.name for folder in records], [folder.name for folder in others]) == (["0"], ["1"])
    assert "1 has the record of 0" in caplog.text


@pytest.mark.parametrize("reader", [check_results, aggregate])
def test_lost_lines_of_a_finished_run_are_noticed_before_training_and_in_the_table(reader: Any, tmp_path: Path) -> None:
    path = finished(tmp_path, 0, epochs=4) / "train" / "stats.json"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(ResultsError, match=r"train/stats.json lacks epoch 2 of a finished run; restore"):
        reader(tmp_path, "accuracy", "argmax", "e")
    assert not (tmp_path / "agg").exists()


def test_runs_that_are_about_to_be_replaced_are_not_looked_at(tmp_path: Path) -> None:
    (finished(tmp_path, 0) / "train" / "stats.json").write_text("{\n")
    check_results(tmp_path, "accuracy", "argmax", "e", replaced=["0"])
    check_results(tmp_path, "accuracy", "argmax", "another experiment")
    check_results(tmp_path / "not there yet")


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
        best, chosen = None, None  # as the training loop keeps them
        for epoch, value in enumerate(values):
            if is_better(value, best, agg == "argmax"):
                best, chosen = value, epoch
        assert best_epoch(run_of(values), "f1", agg) == chosen, values
        finite = [value for value in values if math.isfinite(value)]
        extremum = (max(finite) if agg == "argmax" else min(finite)) if finite else values[0]
        assert chosen == values.index(extremum), values


@pytest.mark.parametrize(
    ("run", "message"),
    [(run_of(("0.5", "0.7")), "no 'f1'"), ({}, "no line; train it again"), ({"val": {}}, "no line; train it again")],
)
def test_statistics_without_a_best_epoch_are_an_error(run: dict, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        best_epoch(run, "f1")
