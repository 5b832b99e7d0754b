"""Runs on disk, and the table that is built of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord
from graphgps_kmip.experiments.manifest import PrintedCell, PrintedTable
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable, build_table

PRINTED = {
    "paper/1": PrintedTable(
        id="paper/1",
        title="Accuracy",
        hardware="a V100",
        columns={"digits": {"metric": "accuracy", "better": "higher", "unit": "%"}, "letters": {"metric": "accuracy"}},
        rows={"GCN": {"digits": PrintedCell("58.0 ± 1.0", 58.0, 1.0, 4)}, "GAT": {}},
        notes=("as printed",),
    )
}
GCN = Training({"dataset": "digits", "model": "GCN"}, "quickstart/digits-gcn.yaml", (0, 1))
SPEC = TableSpec("paper/1", scale={"default": 100})
EXPERIMENT = Experiment("E", "An experiment", settings={"default": "ours", "GAT": "exact"}, trainings=(GCN,))


def record(run: Path, score: float = 0.5, **changes: Any) -> None:
    run.mkdir(parents=True, exist_ok=True)
    content = {
        "finished": True,
        "config_hash": "h",
        "sample": False,
        "metric_best": "accuracy",
        "params": 1234,
        "wall_time": 7200.0,
        "best": {"train": {}, "test": {"loss": 1.0, "accuracy": score}},
    }
    (run / "record.json").write_text(json.dumps(content | changes))


def search_record(**changes: Any) -> SearchRecord:
    ranges = {"lr": ["0.1", ["0.1", "0.01"]], "k": ["5", ["5", "10"]]}
    facts = {
        "config": "Fair/x",
        "trials": 10,
        "failed": 0,
        "seconds": 60.0,
        "seeds": "seed 100",
        "metric": "accuracy",
    }
    facts |= {"value": 0.8, "choice": {"lr": "0.1"}, "ranges": ranges}
    return SearchRecord(**(facts | changes))


def build(out: Path, spec: TableSpec = SPEC, experiment: Experiment = EXPERIMENT, sample: bool = False) -> ResultTable:
    return build_table(experiment, spec, PRINTED, out, lambda _: "h", sample)


SCORES = {
    "GCN": (80.0, 81.0, 82.0, 80.5, 81.5, 83.0),
    "GAT": (79.0, 80.5, 82.0, 80.0, 79.0, 82.9),
    "kMIP": (70.0, 82.0, 72.0, 73.0, 74.0, 71.0),
}


def tuned_table(**changes: object) -> ResultTable:
    rows = {
        row: {"Cora score": Cell(Ours(values, tuple(range(len(values))), len(values)))}
        for row, values in SCORES.items()
    }
    columns = {"Cora score": {"metric": "accuracy", "better": "higher", "unit": "%"}}
    settings, searches = dict.fromkeys(SCORES, "ours"), {row: search_record() for row in SCORES}
    return dataclasses.replace(
        ResultTable("fair/x", "X", "fair/x", columns, rows, settings, searches=searches), **changes
    )
