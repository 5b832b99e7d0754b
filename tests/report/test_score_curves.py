"""Learning curves of a table: what is drawn of runs on disk, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.figures.score_curves import draw_score_curves
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from tests.report.example_figures import table, texts

SCORES = {"val": [[0.5, 0.75], [0.25, 0.5]], "test": [[0.5, 0.25], [0.5, 0.75]]}  # of two seeds


def trained(folder: Path, scores: dict[str, list[list[float]]]) -> ResultTable:
    """Write runs, and return the table that they fill, with a printed number in a second row."""
    sources = {}
    for seed in range(len(scores["test"])):
        for split, values in scores.items():
            path = folder / str(seed) / split / "stats.json"
            path.parent.mkdir(parents=True)
            lines = [json.dumps({"epoch": epoch, "auc": value}) for epoch, value in enumerate(values[seed])]
            path.write_text("".join(f"{line}\n" for line in lines))
        sources[seed] = Status(State.DONE, folder / str(seed), {"metric_best": "auc"})
    cell = Cell(Ours((50.0,) * len(sources), tuple(sources), len(sources), {}, sources), PrintedCell("80.0", 80.0))
    columns = {"data (rebuilt)": {"metric": "AUC", "unit": "%"}, "other": {"metric": "AUC"}}
    return table("p/score", columns, {"GECO": [cell, Cell()], "GPS": [Cell(None, PrintedCell("79", 79.0)), Cell()]})


def test_curves_are_means_over_seeds_with_a_band_and_printed_numbers_are_lines(tmp_path: Path) -> None:
    figure = draw_score_curves({"p/score": trained(tmp_path, SCORES)}, {"scale": 100})
    (axes,) = figure.axes  # nothing of ours in the other column
    val, test, *printed = axes.lines
    assert list(val.get_xdata()) == [1, 2]
    assert list(val.get_ydata()) == [37.5, 62.5]
    assert list(test.get_ydata()) == [50, 50]
    assert [line.get_ydata()[0] for line in printed] == [80, 79]
    edge = axes.collections[1].get_paths()[0].vertices[:, 1]
    assert (edge.min(), edge.max()) == (25, 75)
    assert axes.get_title() == "data (rebuilt)"
    assert {"GECO (2 epochs, 2 seeds)", "GECO, printed 80.0", "GPS, printed 79", "val", "test"} == set(texts(figure))


def test_one_seed_has_no_band(tmp_path: Path) -> None:
    figure = draw_score_curves({"p/score": trained(tmp_path, {key: one[:1] for key, one in SCORES.items()})}, {})
    assert not figure.axes[0].collections
    assert list(figure.axes[0].lines[1].get_ydata()) == [0.5, 0.25]
    assert "GECO (2 epochs, 1 seed)" in texts(figure)


@pytest.mark.parametrize(
    ("val", "message"),
    [([[0.5, 0.75], [0.25]], "runs have not the same epochs in val"), ([[], []], "val/stats.json has no auc")],
)
def test_runs_that_do_not_fit_together_are_refused(val: list[list[float]], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        draw_score_curves({"p/score": trained(tmp_path, SCORES | {"val": val})}, {})
