"""First, second and third of a column."""

from __future__ import annotations

import math
from typing import Any

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_layout import our_ranks, printed_ranks, ranks


def table(sample: bool = False, **facts: Any) -> ResultTable:
    rows = {
        "a": Cell(Ours((1.0, 3.0), (0, 1), 2), PrintedCell("5", 5.0)),
        "b": Cell(Ours((9.0,), (0,), 2), PrintedCell("OOM")),
        "c": Cell(Ours((4.0, 4.0), (0, 1), 2), PrintedCell("4", 4.0)),
        "d": Cell(None, PrintedCell("6", 6.0)),
    }
    cells = {row: {"x": cell} for row, cell in rows.items()}
    return ResultTable("t", "t", "e", {"x": {"better": "higher"} | facts}, cells, dict.fromkeys(rows, "ours"), sample)


def test_the_three_best_are_ranked_in_the_direction_of_the_column() -> None:
    values = {"a": 1.0, "b": 4.0, "c": 3.0, "d": 2.0}
    assert ranks(values, "higher") == {"b": 1, "c": 2, "d": 3}
    assert ranks(values, "lower") == {"a": 1, "d": 2, "c": 3}
    assert ranks(values, None) == {}


def test_equal_values_share_a_rank_and_the_next_is_as_much_higher() -> None:
    assert ranks({"a": 2.0, "b": 2.0, "c": 1.0, "d": 0.0}, "higher") == {"a": 1, "b": 1, "c": 3}
    assert ranks({"a": 3.0, "b": 2.0, "c": 2.0, "d": 2.0}, "higher") == {"a": 1, "b": 2, "c": 2, "d": 2}


def test_what_is_no_number_has_no_rank_and_a_single_value_none_either() -> None:
    assert ranks({"a": None, "b": 1.0, "c": math.nan, "d": 2.0}, "higher") == {"d": 1, "b": 2}
    assert ranks({"a": None, "b": 1.0}, "higher") == {}


def test_our_complete_cells_and_the_printed_ones_are_ranked_apart() -> None:
    assert our_ranks(table(), "x") == {"c": 1, "a": 2}
    assert printed_ranks(table(), "x") == {"d": 1, "a": 2, "c": 3}


def test_means_that_look_equal_share_a_rank() -> None:
    found = table()
    found.rows["a"]["x"] = Cell(Ours((3.9, 4.12), (0, 1), 2), PrintedCell("4.0", 4.0))  # 4.01, shown as 4.0
    assert our_ranks(found, "x") == {"a": 1, "c": 1}


def test_samples_and_columns_whose_rows_do_not_compete_have_no_ranks() -> None:
    assert our_ranks(table(sample=True), "x") == {}
    assert our_ranks(table(ranked=False), "x") == {}
    assert printed_ranks(table(ranked=False), "x") == {}
