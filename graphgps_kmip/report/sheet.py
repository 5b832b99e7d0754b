"""A table as comma-separated values: one line for each cell, with every fact in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable


def sheet(table: ResultTable, partial: bool = False) -> str:
    """Return the cells as lines below one heading; an unknown value is empty, lists are separated by blanks.

    Without `partial`, mean, deviation and difference of a cell that lacks runs are empty.
    """
    lines = [
        {"table": table.id, "row": row, "column": column}
        | _facts(cell, partial)
        | {"settings": table.settings[row], "sample": table.sample}
        for row, cells in table.rows.items()
        for column, cell in cells.items()
    ]
    file = io.StringIO()
    empty = {"table": "", "row": "", "column": ""} | _facts(Cell(), partial) | {"settings": "", "sample": ""}
    writer = csv.DictWriter(file, list(empty), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _facts(cell: Cell, partial: bool) -> Mapping[str, Any]:
    ours, printed = cell.ours or Ours(), cell.printed
    shown = ours.shown(partial)
    difference = cell.difference(partial)
    facts = {
        "ours_text": ours.text,
        "ours_mean": ours.mean if shown else None,
        "ours_std": ours.std if shown else None,
        "ours_n": ours.n,
        "wanted": ours.wanted,
        **{str(state): _keys(ours, state) for state in State if state is not State.DONE},
        "seeds": " ".join(map(str, ours.seeds)),
        "values": " ".join(map(repr, ours.values)),
    }
    facts |= {f"paper_{name}": getattr(printed, name, None) for name in ("text", "mean", "std", "n")}
    facts["quoted"] = getattr(printed, "quoted", None)
    names = {"value": "difference", "low": "low", "high": "high", "df": "df", "reason": "no_interval"}
    return facts | {name: getattr(difference, field, None) for field, name in names.items()}


def _keys(ours: Ours, state: State) -> str:
    return " ".join(str(key) for key, status in ours.unfinished.items() if status.state is state)
