"""Printed tables: the numbers in the papers' tables, read from ``run/experiments/printed/<paper>.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.manifest import check_keys

KEYS = ("title", "hardware", "seeds", "columns", "rows", "quoted", "notes")
NUMBER = re.compile(r"(-?[\d.]+)(k?)(?: ± ([\d.]+))?$")  # 114k is 114000


@dataclass(frozen=True)
class PrintedCell:
    """One number as printed."""

    text: str  # such as "75.20 ± 0.34", "OOM" or "3-8"
    mean: float | None = None  # None where no number is printed
    std: float | None = None  # None where none is printed
    n: int | None = None  # number of runs; None where the paper does not say
    quoted: str = ""  # source that the paper quotes; empty: its own run


@dataclass(frozen=True)
class PrintedTable:
    """One table."""

    id: str  # <paper>/<table>, such as kmip-paper/table2
    title: str  # in our words
    hardware: str  # as stated, or empty
    columns: Mapping[str, Mapping[str, Any]]  # name -> metric, better (higher, lower or None), unit
    rows: Mapping[str, Mapping[str, PrintedCell]]  # row -> column -> cell; a dash of the paper is not there
    notes: tuple[str, ...] = ()  # what a reader of the numbers should know


def load_printed(*folders: Path) -> dict[str, PrintedTable]:
    """Return the tables of all YAML files in some folders, by id.

    A file is ``table -> {title, hardware, seeds, columns, rows, quoted, notes}``; ``seeds`` is a number, or a list of
    ``{rows, columns, n}`` of which the first that fits holds; ``quoted`` is ``[{rows, columns, source}]``; a cell is a
    number or a string, null is a dash. Numbers with trailing zeros are in quotes.
    """
    return {
        f"{file.stem}/{name}": _read_table(f"{file.stem}/{name}", entry)
        for folder in folders
        for file in sorted(folder.glob("*.yaml"))
        for name, entry in read_yaml(file, error_type=ManifestError, empty=True).items()
    }


def _read_table(key: str, entry: Mapping[str, Any]) -> PrintedTable:
    check_keys(entry, KEYS, key, needed=("title", "columns", "rows"))
    seeds, quoted = entry.get("seeds"), entry.get("quoted", [])
    counts = seeds if isinstance(seeds, list) else [{"n": seeds}]
    rows: dict[str, dict[str, PrintedCell]] = {}
    for row, texts in entry["rows"].items():
        cells = rows[str(row)] = {}
        for column, text in ((column, text) for column, text in texts.items() if text is not None):
            n, source = _first_fit(counts, row, column, "n"), _first_fit(quoted, row, column, "source") or ""
            mean, thousands, std = match.groups() if (match := NUMBER.match(str(text))) else (None, "", None)
            number = None if mean is None else float(mean) * (1000 if thousands else 1)
            cells[column] = PrintedCell(str(text), number, float(std) if std else None, n, source)
    notes = tuple(entry.get("notes", ()))
    return PrintedTable(key, entry["title"], entry.get("hardware", ""), entry["columns"], rows, notes)


def _first_fit(rules: list[Mapping[str, Any]], row: str, column: str, value: str) -> Any:
    fitting = (rule for rule in rules if row in rule.get("rows", [row]) and column in rule.get("columns", [column]))
    return next((rule[value] for rule in fitting), None)
