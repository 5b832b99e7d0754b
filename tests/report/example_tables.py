"""A table with every kind of entry, and what a Markdown text of it says."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_formats import FORMATS

RUN = Path("results/LRGB/x")
RECORD = {"code_version": "abc1234", "hardware": {"cpu": "EPYC", "cores": 2}, "finished_at": "2026-01-02T03:04:05"}


def ours(*values: float, wanted: int | None = None, **unfinished: tuple[State, str]) -> Ours:
    left = {int(seed[1:]): Status(state, RUN / seed[1:], {}, error) for seed, (state, error) in unfinished.items()}
    done = {seed: Status(State.DONE, RUN / str(seed), RECORD) for seed in range(len(values))}
    return Ours(values, tuple(done), len(values) if wanted is None else wanted, left, done)


def result_table(**changes: Any) -> ResultTable:
    failed = ours(30.0, 32.0, wanted=5, s2=(State.FAILED, "out of memory"), s4=(State.DIVERGED, "loss is nan"))
    digits = {
        "GCN": Cell(ours(60.0, 62.0, 64.0), PrintedCell("61.00 ± 1.00", 61.0, 1.0, 3, "Someone & Co. 2023")),
        "GAT": Cell(ours(70.126), PrintedCell("70.20", 70.2, None, 1)),
        "k|MIP_1": Cell(failed, PrintedCell("OOM")),
        "GINE": Cell(ours(50.0, 50.5)),
        "<last> 50%": Cell(None, PrintedCell("40.00 ± 1.00", 40.0, 1.0)),
    }
    other = dict.fromkeys(digits, Cell()) | {
        "GCN": Cell(ours(0.5, 0.51)),
        "GAT": Cell(dataclasses.replace(ours(), text="OOM")),
        "k|MIP_1": Cell(ours(wanted=2)),
    }
    return ResultTable(
        **{
            "id": "paper/1",
            "title": "Accuracy & more_or_less",
            "experiment": "E",
            "columns": {
                "digits": {"metric": "accuracy", "better": "higher", "unit": "%"},
                "error": {"metric": "MAE", "better": "lower"},
            },
            "rows": {row: {"digits": digits[row], "error": other[row]} for row in digits},
            "settings": dict.fromkeys(digits, "ours") | {"GCN": "exact"},
            "printed_hardware": "a V100",
            "notes": ("A note {in} 50 % of_cases.",),
        }
        | changes
    )


def sample_table() -> ResultTable:
    table = result_table()
    rows = {row: {c: Cell(cell.ours) for c, cell in cells.items()} for row, cells in table.rows.items()}
    return dataclasses.replace(table, rows=rows, sample=True)


def blocks(text: str) -> list[list[list[str]]]:
    """Return the tables of a Markdown text: lines of stripped cells."""
    found = [[re.split(r"(?<!\\)\|", line)[1:-1] for line in part.splitlines()] for part in text.split("\n\n")]
    return [[[cell.strip() for cell in line] for line in block] for block in found if block and block[0]]


def markdown_cells(partial: bool = False, table: ResultTable | None = None) -> dict[str, list[str]]:
    """Return the row's name -> cells, of all blocks side by side."""
    cells: dict[str, list[str]] = {}
    for block in blocks(FORMATS["md"](table or result_table(), partial=partial)):
        for line in block:
            cells.setdefault(line[0], []).extend(line[2:])
    return cells
