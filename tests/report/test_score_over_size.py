"""The figure of scores over the number of nodes shows what its table says, and names each line."""

from __future__ import annotations

import pytest

from graphgps_kmip.report.figures.score_over_size import NAME_HEIGHT, draw_score_over_size
from graphgps_kmip.report.result_table import Cell
from tests.report.example_figures import cell, table

FACTS = {"metric": "accuracy", "unit": "%"}
ROWS = {
    "GPS+kMIP": [cell(95.0), cell(94.0), Cell()],
    "GCN": [cell(30.0), cell(25.0), cell(25.0)],
    "Exphormer": [cell(30.1), cell(25.1), cell(25.1)],
    "not run": [Cell(), Cell(), Cell()],
}
TABLE = {"t": table("t", {"32": FACTS, "64": FACTS, "128": FACTS}, ROWS)}
OPTIONS = {"x": "nodes", "emphasis": ["GPS+kMIP"], "chance": 25}


def test_each_row_with_runs_is_a_line_up_to_its_last_size_with_its_name_at_the_end() -> None:
    (axes,) = draw_score_over_size(TABLE, OPTIONS).axes
    lines = [bars.lines[0] for bars in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[32, 64], [32, 64, 128], [32, 64, 128]]
    assert list(lines[0].get_ydata()) == pytest.approx([95 * 1.05, 94 * 1.05])
    names = {text.get_text(): text for text in axes.texts}
    assert set(names) == {"guess", "GPS+kMIP", "GCN", "Exphormer"}
    assert names["GPS+kMIP"].xy == (64, pytest.approx(94 * 1.05))
    assert names["GPS+kMIP"].get_fontweight() == "bold"
    assert lines[0].get_linewidth() > lines[1].get_linewidth()


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    figure = draw_score_over_size(TABLE, OPTIONS)
    (axes,) = figure.axes
    height = {text.get_text(): axes.transData.transform((0, text.xyann[1]))[1] for text in axes.texts}
    assert abs(height["GCN"] - height["Exphormer"]) >= 0.99 * NAME_HEIGHT * figure.dpi / 72
