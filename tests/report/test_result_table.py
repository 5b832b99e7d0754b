"""From record.json files and files of commands to a table: arithmetic, what is left out, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.errors import DIVERGED_CODE
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, TableSpec, Training
from graphgps_kmip.experiments.run_status import State, failure_file
from graphgps_kmip.report.table_notes import origins, table_notes
from tests.report.example_runs import EXPERIMENT, GCN, build, record, search_record


def test_runs_become_mean_and_sample_deviation_in_the_unit_of_the_column(tmp_path: Path) -> None:
    for seed, score in enumerate((0.5, 0.7)):
        record(GCN.run_dir(seed, tmp_path), score)
    cell = build(tmp_path).rows["GCN"]["digits"]
    assert cell.ours.mean == pytest.approx(60)
    assert cell.ours.std == pytest.approx(200**0.5)  # sqrt((10^2 + 10^2) / (2 - 1))
    assert (cell.ours.n, cell.ours.seeds, cell.ours.planned, cell.ours.complete) == (2, (0, 1), 2, True)
    assert cell.printed.text == "58.0 ± 1.0"
    assert cell.difference(partial=False).value == pytest.approx(2)
    assert {seed: status.path for seed, status in cell.ours.sources.items()} == {
        seed: GCN.run_dir(seed, tmp_path) for seed in (0, 1)
    }


def test_every_printed_row_and_column_is_there_dashes_too(tmp_path: Path) -> None:
    table = build(tmp_path)
    assert {row: list(cells) for row, cells in table.rows.items()} == dict.fromkeys(
        ("GCN", "GAT"), ["digits", "letters"]
    )
    assert table.rows["GAT"]["letters"] == dataclasses.replace(table.rows["GAT"]["letters"], ours=None, printed=None)
    assert table.settings == {"GCN": "ours", "GAT": "quoted"}
    assert (table.title, table.printed_hardware, table.notes) == ("Accuracy", "a V100", ("as printed",))


def test_runs_that_are_not_done_are_told_apart_and_not_counted(tmp_path: Path) -> None:
    training = dataclasses.replace(GCN, seeds=(0, 1, 2, 3, 4, 5))
    runs = [training.run_dir(seed, tmp_path) for seed in training.seeds]
    record(runs[0])
    record(runs[1], config_hash="that of other settings")
    record(runs[2], finished=False)
    runs[0].parent.mkdir(parents=True, exist_ok=True)
    for run, code in ((runs[3], 1), (runs[4], DIVERGED_CODE)):
        failure_file(run).write_text(json.dumps({"config_hash": "h", "exit_code": code, "error": "why"}))
    side = build(tmp_path, experiment=dataclasses.replace(EXPERIMENT, trainings=(training,))).rows["GCN"]["digits"].ours
    assert (side.values, side.seeds, side.planned) == ((50,), (0,), 6)
    states = [State.STALE, State.INTERRUPTED, State.FAILED, State.DIVERGED, State.MISSING]
    assert {seed: status.state for seed, status in side.unfinished.items()} == dict(enumerate(states, start=1))
    assert side.unfinished[3].error == "why"
    assert not side.complete
    assert not side.shown(partial=False)
    assert side.shown(partial=True)


def test_a_sample_among_results_and_a_result_among_samples_are_refused(tmp_path: Path) -> None:
    for sample, message in (
        (False, "digits-gcn/0 is a run on sample data, which a table of results never shows"),
        (True, "quickstart-sample/digits-gcn/0 is a result, which a table of samples never shows"),
    ):
        record(GCN.run_dir(0, tmp_path, sample=sample), sample=not sample)
        with pytest.raises(ValueError, match=message):
            build(tmp_path, sample=sample)


def test_a_table_of_samples_has_no_printed_number_beside(tmp_path: Path) -> None:
    record(GCN.run_dir(0, tmp_path), 0.9)
    record(GCN.run_dir(1, tmp_path, sample=True), 0.1, sample=True)
    table = build(tmp_path, sample=True)
    assert table.sample
    assert table.rows["GCN"]["digits"].ours.values == (10,)
    assert not any(cell.printed for cells in table.rows.values() for cell in cells.values())
    assert table.printed_hardware == ""
    assert table.notes[0].startswith("SAMPLE")
    assert "as printed" not in table.notes


@pytest.mark.parametrize(
    ("first", "changes", "message"),
    [
        (False, {"metric_best": "loss"}, "digits-gcn/1 chose its epoch by 'loss'.*set metric_best.*to one of accuracy"),
        (True, {"metric_best": "f1", "best": {"test": {"f1": 0.5}}}, "column digits mixes the metrics accuracy and f1"),
    ],
)
def test_loss_and_mixed_metrics_are_refused(tmp_path: Path, first: bool, changes: dict[str, Any], message: str) -> None:
    if first:
        record(GCN.run_dir(0, tmp_path))
    record(GCN.run_dir(1, tmp_path), **changes)
    with pytest.raises(ValueError, match=message):
        build(tmp_path)


@pytest.mark.parametrize(
    ("kind", "expected"), [("params", 1234), ("hours", 2), ("epoch_seconds", 3), ("width", 36), ("memory_mb", 3)]
)
def test_a_table_takes_other_values_of_a_run(tmp_path: Path, kind: str, expected: float) -> None:
    run = GCN.run_dir(0, tmp_path)
    record(run, peak_memory={"ram": 9 * 2**20, "cuda": 3 * 2**20})
    (run / "train").mkdir()
    (run / "train" / "stats.json").write_text('{"epoch": 0, "time_epoch": 2.0}\n{"epoch": 1, "time_epoch": 4.0}\n')
    (run / "config.yaml").write_text("gnn: {dim_inner: 36}\ngt: {dim_hidden: 64}\n")
    assert build(tmp_path, TableSpec("paper/1", kind)).rows["GCN"]["digits"].ours.values == (expected,)


def test_seconds_and_memory_are_of_a_run_that_was_timed_alone_where_there_is_one(tmp_path: Path) -> None:
    for seed in (0, 1):
        record(GCN.run_dir(seed, tmp_path), 0.5, peak_memory={"ram": 9 * 2**20}, hardware={"cpu": "EPYC", "cores": 2})
    kinds = {f"digits {kind}": {} for kind in ("score", "memory_mb")}
    spec = TableSpec("costs", "score memory_mb", columns=kinds)
    assert build(tmp_path, spec).rows["GCN"]["digits memory_mb"].ours.values == (9, 9)
    timed = GCN.run_dir(0, tmp_path / "timing")
    record(timed, 0.1, peak_memory={"ram": 3 * 2**20}, hardware={"cpu": "Xeon", "cores": 2})
    table = build(tmp_path, spec)
    cells = {column: cell.ours for column, cell in table.rows["GCN"].items()}
    assert cells["digits score"].values == (0.5, 0.5)
    cost = cells["digits memory_mb"]
    assert (cost.values, cost.complete, cost.sources[0].path) == ((3,), True, timed)
    note = "seconds and memory of one run that had the machine to itself (`run --timing`, on Xeon, 2 cores): GCN."
    assert {note, "our hardware: EPYC, 2 cores."} < set(table_notes(table, partial=False))
    record(timed, config_hash="that of other settings")
    assert build(tmp_path, spec).rows["GCN"]["digits memory_mb"].ours.values == (9, 9)


def test_trials_are_those_of_the_search_that_chose_the_settings(tmp_path: Path) -> None:
    other = Training({"dataset": "digits", "model": "GAT"}, "quickstart/digits-gat.yaml", (0, 1))
    experiment = dataclasses.replace(EXPERIMENT, trainings=(GCN, other), searched={GCN.folder: search_record()})
    table = build(tmp_path, TableSpec("paper/1", "trials"), experiment)
    assert [table.rows[row]["digits"].ours.text for row in ("GCN", "GAT")] == ["10", "not searched"]
    assert list(table.searches) == ["GCN"]


@pytest.mark.parametrize("kind", ["score", "epoch_seconds", "width"])
def test_a_run_without_the_value_is_named(tmp_path: Path, kind: str) -> None:
    record(GCN.run_dir(1, tmp_path), best={})
    with pytest.raises(ValueError, match=r"digits-gcn/1.*train it again"):
        build(tmp_path, TableSpec("paper/1", kind))


def test_a_table_of_our_own_has_the_rows_of_the_chosen_trainings(tmp_path: Path) -> None:
    others = [
        Training({"dataset": "digits", "model": name}, f"quickstart/{name}.yaml", (0,)) for name in ("MLP", "GAT")
    ]
    experiment = dataclasses.replace(EXPERIMENT, trainings=(GCN, *others))
    spec = TableSpec("mine", columns={"digits": {}}, title="Ours", where={"model": ["GAT", "GCN"]})
    table = build(tmp_path, spec, experiment)
    assert list(table.rows) == ["GCN", "GAT"]
    assert (table.title, table.rows["GAT"]["digits"].ours.planned) == ("Ours", 1)


def command(out: Path, cells: Any, sample: bool = False) -> Experiment:
    speed = Command("speed", "run/speed.py", "run/speed.py --small", ("cells.json",))
    experiment = dataclasses.replace(EXPERIMENT, trainings=(), commands={"speed": speed})
    folder = speed.out_dir("E", out, sample)
    record(folder, config_hash=speed.sample if sample else speed.run, sample=sample)
    (folder / "cells.json").write_text(json.dumps(cells))
    return experiment


OF_COMMAND = TableSpec("paper/1", "cells", source="speed/cells.json", scale={"digits": 1000})


def test_a_command_fills_cells_with_values_or_words_and_may_add_rows(tmp_path: Path) -> None:
    cells = {"GCN": {"digits": [0.1, 0.3], "letters": "OOM"}, "N=10^7": {"digits": [1], "letters": [5]}}
    table = build(tmp_path, OF_COMMAND, command(tmp_path, {"cells": cells}))
    assert list(table.rows) == ["GCN", "GAT", "N=10^7"]
    assert table.rows["GCN"]["digits"].ours.values == pytest.approx((100, 300))
    assert table.rows["GCN"]["digits"].ours.complete
    assert table.rows["GCN"]["digits"].printed.mean == 58.0
    assert (table.rows["GCN"]["letters"].ours.text, table.rows["GCN"]["letters"].ours.values) == ("OOM", ())
    assert table.rows["N=10^7"]["letters"].ours.values == (5,)
    assert list(table.rows["GCN"]["digits"].ours.sources) == ["speed"]
    assert not any(facts["ranked"] for facts in table.columns.values())
    places = [(origin.row, origin.columns, origin.run) for origin in origins(table)]
    assert places == [("GCN", ["digits"], "speed"), ("N=10^7", ["digits", "letters"], "speed")]


def test_a_command_that_is_not_done_says_so_in_every_cell(tmp_path: Path) -> None:
    experiment = command(tmp_path, {})
    (tmp_path / "commands" / "E" / "speed" / "cells.json").unlink()
    table = build(tmp_path, OF_COMMAND, experiment)
    states = {cell.ours.unfinished["speed"].state for cells in table.rows.values() for cell in cells.values()}
    assert states == {State.MISSING}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TableSpec("paper/2"), r"no printed table 'paper/2'\. Did you mean paper/1\?"),
        (TableSpec("paper/1", "scores"), r"unknown value 'scores'\. Did you mean score\?"),
        (TableSpec("paper/1", row="{modle}"), r"digits-gcn has no axis 'modle'\. Did you mean model\?"),
        (TableSpec("paper/1", row="{model}s"), r"row 'GCNs' is not in the table\. Did you mean GCN\?"),
        (TableSpec("paper/1", column="digit"), r"column 'digit' is not in the table\. Did you mean digits\?"),
        (TableSpec("paper/1", scale={"digit": 2}), r"scale of column 'digit' is not in the table"),
        (TableSpec("paper/1", "cells", source="sped/cells.json"), r"no command 'sped'\. Did you mean speed\?"),
    ],
)
def test_a_name_that_does_not_exist_is_told_with_what_is_near(tmp_path: Path, spec: TableSpec, message: str) -> None:
    experiment = dataclasses.replace(command(tmp_path, {}), trainings=(GCN,))
    with pytest.raises(ValueError, match=message):
        build(tmp_path, spec, experiment)


def test_two_trainings_of_one_cell_and_a_row_without_settings_are_refused(tmp_path: Path) -> None:
    deep = dataclasses.replace(GCN, tag="deep")
    with pytest.raises(ValueError, match="digits-gcn and quickstart/digits-gcn-deep fill GCN, digits: choose by"):
        build(tmp_path, experiment=dataclasses.replace(EXPERIMENT, trainings=(GCN, deep)))
    with pytest.raises(ValueError, match="E has no settings for row 'GCN'"):
        build(tmp_path, experiment=dataclasses.replace(EXPERIMENT, settings={"GAT": "exact"}))
