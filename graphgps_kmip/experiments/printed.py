"""The tables that the papers print, as data: ``run/experiments/printed/<paper>.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

NUMBER = re.compile(r"(-?[\d.]+)(?: ± ([\d.]+))?$")


@dataclass(frozen=True)
class PrintedCell:
    """One number as printed.

    Args:
        text: as printed, such as ``"75.20 ± 0.34"``, ``"OOM"`` or ``"3-8"``.
        mean: None where no number is printed.
        std: None where none is printed.
        n: runs behind it; None where the paper does not say.
        quoted: whom the paper took it from; empty: its own run.
    """

    text: str
    mean: float | None = None
    std: float | None = None
    n: int | None = None
    quoted: str = ""


@dataclass(frozen=True)
class PrintedTable:
    """One table.

    Args:
        id: ``<paper>/<table>``, such as ``kmip-paper/table2``.
        title: in our words.
        hardware: as stated, or empty.
        columns: name -> ``metric``, ``better`` (``higher``, ``lower`` or None), ``unit``.
        rows: row -> column -> cell; a dash of the paper is not there.
        notes: what a reader of the numbers should know.
    """

    id: str
    title: str
    hardware: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, PrintedCell]]
    notes: tuple[str, ...] = field(default_factory=tuple)


def load_printed(folder: Path) -> dict[str, PrintedTable]:
    """Return the tables of all YAML files in a folder, by id.

    A file is ``table -> {title, hardware, seeds, columns, rows, quoted, notes}``; ``seeds`` is a number, or a list of
    ``{rows, columns, n}`` where it differs; ``quoted`` is ``[{rows, columns, source}]``; a cell is a number or a
    string, null is a dash. Numbers with trailing zeros stand in quotes.
    """
    tables = {}
    for file in sorted(folder.glob("*.yaml")):
        for name, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items():
            key = f"{file.stem}/{name}"
            rows = {
                row: {column: _cell(text, row, column, entry) for column, text in cells.items() if text is not None}
                for row, cells in entry["rows"].items()
            }
            tables[key] = PrintedTable(
                key, entry["title"], entry.get("hardware", ""), entry["columns"], rows, tuple(entry.get("notes", ()))
            )
    return tables


def _cell(text: Any, row: str, column: str, entry: Mapping[str, Any]) -> PrintedCell:
    found = NUMBER.match(str(text))
    mean, std = (float(part) if part else None for part in found.groups()) if found else (None, None)
    seeds = entry.get("seeds")
    for rule in seeds if isinstance(seeds, list) else [{"n": seeds}]:
        n = rule["n"] if _fits(rule, row, column) else None
        if n is not None:
            break
    quoted = next((rule["source"] for rule in entry.get("quoted", []) if _fits(rule, row, column)), "")
    return PrintedCell(str(text), mean, std, n, quoted)


def _fits(rule: Mapping[str, Any], row: str, column: str) -> bool:
    return row in rule.get("rows", [row]) and column in rule.get("columns", [column])
