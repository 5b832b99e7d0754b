"""Tables that a command fills, and specs of tables that do not fit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from graphgps_kmip.experiments.experiment_spec import Command, Experiment, TableSpec
from graphgps_kmip.experiments.run_status import State
from tests.report.example_runs import EXPERIMENT, GCN, build, record


def command(out: Path, cells: Any, sample: bool = False) -> Experiment:
    one = Command("speed", "run/speed.py", "run/speed.py --small", ("cells.json",))
    experiment = dataclasses.replace(EXPERIMENT, trainings=(), commands={"speed": one})
    folder = one.out_dir("E", out, sample)
    record(folder, config_hash=one.sample if sample else one.run, sample=sample)
    (folder / "cells.json").write_text(json.dumps(cells))
    return experiment


OF_COMMAND = TableSpec("paper/1", "cells", source="speed/cells.json", scale={"digits": 1000})


def test_a_command_fills_cells_with_values_or_words_and_may_add_rows(tmp_path: Path) -> None:
    cells = {"GCN": {"digits": [0.1, 0.3], "letters": "OOM"}, "N=10^7": {"letters": [5]}}
    table = build(tmp_path, OF_COMMAND, command(tmp_path, {"cells": cells}))
    assert list(table.rows) == ["GCN", "GAT", "N=10^7"]
    assert table.rows["GCN"]["digits"].ours.values == pytest.approx((100, 300))
    assert table.rows["GCN"]["digits"].ours.complete
    assert table.rows["GCN"]["digits"].printed.mean == 58.0
    assert (table.rows["GCN"]["letters"].ours.text, table.rows["GCN"]["letters"].ours.values) == ("OOM", ())
    assert table.rows["N=10^7"]["letters"].ours.values == (5,)
    assert list(table.rows["GCN"]["digits"].ours.sources) == ["speed"]
    assert not any(facts["ranked"] for facts in table.columns.values())


def test_a_command_that_is_not_done_says_so_in_every_cell(tmp_path: Path) -> None:
    experiment = command(tmp_path, {})
    (tmp_path / "commands" / "E" / "speed" / "cells.json").unlink()
    table = build(tmp_path, OF_COMMAND, experiment)
    states = {cell.ours.unfinished["speed"].state for cells in table.rows.values() for cell in cells.values()}
    assert states == {State.MISSING}


def test_a_commands_sample_is_refused_among_results(tmp_path: Path) -> None:
    experiment = command(tmp_path, {"cells": {"GCN": {"digits": [1]}}}, sample=True)
    assert build(tmp_path, OF_COMMAND, experiment, sample=True).rows["GCN"]["digits"].ours.values == (1000,)
    record(tmp_path / "commands" / "E" / "speed", config_hash="run/speed.py", sample=True)
    (tmp_path / "commands" / "E" / "speed" / "cells.json").write_text("{}")
    with pytest.raises(ValueError, match="speed is a run on sample data"):
        build(tmp_path, OF_COMMAND, experiment)


def test_a_commands_file_without_cells_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"speed/cells\.json: expected JSON with `cells`"):
        build(tmp_path, OF_COMMAND, command(tmp_path, {"rows": {}}))


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
