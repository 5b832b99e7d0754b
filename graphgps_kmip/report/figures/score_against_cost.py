"""Figure of score against cost: the models of a table by the time of an epoch and by peak memory, a panel for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from matplotlib.figure import Figure

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.figures.score_over_time import draw_time_against_score
from graphgps_kmip.report.result_table import Cell, ResultTable

COSTS = {"epoch_seconds": "time of an epoch", "memory_mb": "peak memory"}  # kind of value -> title of a panel


def draw_score_against_cost(tables: Mapping[str, ResultTable]) -> Figure:
    """Draw a line of panels for each data set, one for each cost: our models as labelled points.

    Args:
        tables: with columns ``<data set> score`` and ``<data set> epoch_seconds`` or ``<data set> memory_mb``.

    Raises:
        ValueError: no table has such columns.
    """
    pairs = {}
    for table in tables.values():
        for column in table.columns:
            name, _, kind = column.rpartition(" ")
            for cost, title in COSTS.items():
                if kind == "score" and f"{name} {cost}" in table.columns:
                    pairs[f"{name}, {title}"] = (table, column, f"{name} {cost}")
    if not pairs:
        raise ResultsError(f"no column of {', '.join(tables)} is a score with {' or '.join(COSTS)} beside it")
    scores = _columns({title: (table, column) for title, (table, column, _) in pairs.items()})
    costs = _columns({title: (table, column) for title, (table, _, column) in pairs.items()})
    return draw_time_against_score({"scores": scores, "costs": costs}, {"across": len(COSTS)})


def _columns(parts: Mapping[str, tuple[ResultTable, str]]) -> ResultTable:
    """Return one table of our side of columns of several, by new names; the literature prints scores without costs."""
    tables = [table for table, _ in parts.values()]
    rows = dict.fromkeys(row for table in tables for row in table.rows)
    cells = {
        row: {
            title: Cell(table.rows[row][column].ours) if row in table.rows else Cell()
            for title, (table, column) in parts.items()
        }
        for row in rows
    }
    columns = {title: table.columns[column] for title, (table, column) in parts.items()}
    return dataclasses.replace(tables[0], columns=columns, rows=cells)
