"""Best, second and third of a column: among our complete cells, and among the printed ones, each for itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphgps_kmip.report.cell_text import shown_decimals
from graphgps_kmip.report.result_table import ResultTable

PLACES = 3  # the papers mark first, second and third


def ranks(values: Mapping[str, float | None], better: str | None) -> dict[str, int]:
    """Return the names of the three best values with their ranks, 1 the best.

    Equal values share a rank, and the next is as much higher (1, 1, 3). None and NaN have none; nor have all if no
    direction is better, or if there is nothing to compare with.

    Args:
        values: name -> value.
        better: ``higher``, ``lower`` or None.
    """
    sign = {"higher": -1, "lower": 1, None: 0}[better]
    order = {name: sign * value for name, value in values.items() if value is not None and not math.isnan(value)}
    if not sign or len(order) < 2:
        return {}
    found = {name: 1 + sum(other < value for other in order.values()) for name, value in order.items()}
    return {name: rank for name, rank in found.items() if rank <= PLACES}


def our_ranks(table: ResultTable, column: str) -> dict[str, int]:
    """Return row -> rank of our complete cells in a column, compared as they are shown; samples have none."""
    ours = {row: cells[column].ours for row, cells in table.rows.items()}
    means = {
        row: round(one.mean, shown_decimals(table, row, column))
        for row, one in ours.items()
        if one is not None and one.complete
    }
    return {} if table.sample else ranks(means, _better(table, column))


def printed_ranks(table: ResultTable, column: str) -> dict[str, int]:
    """Return row -> rank of the printed cells in a column."""
    printed = {row: cells[column].printed for row, cells in table.rows.items()}
    return ranks({row: one.mean for row, one in printed.items() if one is not None}, _better(table, column))


def _better(table: ResultTable, column: str) -> str | None:
    facts = table.columns[column]
    # Where the rows are sizes, and no competitors, the column has ``ranked: False``.
    return facts.get("better") if facts.get("ranked", True) else None
