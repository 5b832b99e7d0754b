"""The benchmark of samples: a short comparison that shows the planted signal, and what it prints and writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from run.bench import samples

from graphgps_kmip.data import DatasetRecord, Features, Statistics


def record_of(level: str, features: Features, statistics: Statistics, **more: str) -> DatasetRecord:
    task_type = more.pop("task_type", "classification")
    return DatasetRecord(
        "Toy", lambda _root: [], task_type, "one", level=level, features=features, statistics=statistics, **more
    )


def test_attention_to_the_whole_graph_reads_a_sample_that_two_convolutions_do_not() -> None:
    record = record_of("graph", Features(9, classes=10), Statistics(60000, 117.6, 941.1, directed=True))
    row = samples.compare(record, seed=0, seconds=math.inf, epochs=12)  # not seconds: machines differ
    assert (row["status"], row["metric"]) == ("ok", "accuracy")
    assert row["gps_test"] > 0.8
    assert row["gcn_test"] < 0.6
    assert row["gain"] == pytest.approx(row["gps_test"] - row["gcn_test"])
    assert row["gps_epochs"] >= 1
    assert row["gps_best_s"] <= row["gps_seconds"]


def test_columns_of_types_and_errors_are_compared_as_well() -> None:
    schema, size = Features((28,), (4,)), Statistics(30, 12, 12, edges_once=True)
    record = record_of("graph", schema, size, task_type="regression")
    row = samples.compare(record, seed=0, seconds=math.inf, epochs=1)
    assert (row["metric"], row["gcn_epochs"], row["gps_epochs"]) == ("mae", 1, 1)
    assert row["gain"] == pytest.approx(row["gcn_test"] - row["gps_test"])  # less is better


def test_a_task_without_a_linear_head_is_named_and_passed_over() -> None:
    row = samples.compare(record_of("link", Features(3), Statistics(30, 12, 12), task_type="link_ranking"), 0, 1)
    assert row["status"] == "not compared: no linear head for link_ranking at level link"


def test_a_run_prints_a_table_and_writes_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["--only", "digit*", "--seconds", "0.01", "--seeds", "0,1", "--out", str(tmp_path)]
    assert samples.main(words) == 0
    (stored,) = tmp_path.glob("samples-*.json")
    record = json.loads(stored.read_text())
    assert [(row["data"], row["seed"], row["status"]) for row in record["rows"]] == [
        ("digits", s, "ok") for s in (0, 1)
    ]
    assert record["options"] == {"only": "digit*", "seconds": 0.01, "seeds": [0, 1], "threads": 1, "isa": "auto"}
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("| digits")]
    assert [words[3] for words in table] == ["graph", "graph"]


def test_unknown_names_and_no_time_are_refused() -> None:
    with pytest.raises(ValueError, match="--only digitz: no data set of this name"):
        samples.pick("digits,digitz")
    with pytest.raises(ValueError, match="--seconds must be positive, got 0"):
        samples.parse(["--seconds", "0"])
