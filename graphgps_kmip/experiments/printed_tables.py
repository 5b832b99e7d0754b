"""Printed tables: the numbers in the papers' tables, read from ``run/experiments/printed/<paper>.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.manifest import check_keys

KEYS = ("title", "hardware", "seeds", "columns", "rows", "quoted", "notes")
NUMBER = re.compile(r"(-?[\d.]+)(k?)(?: ± ([\d.]+))?$")  # 114k is 114000


@dataclass(frozen=True)
class PrintedCell:
    """One number as printed.

    Args:
        text (str): As printed, such as ``"75.20 ± 0.34"``, ``"OOM"`` or ``"3-8"``.
        mean (float, optional): None where no number is printed. (default: ``None``)
        std (float, optional): None where none is printed. (default: ``None``)
        n (int, optional): Runs behind it; None where the paper does not say. (default: ``None``)
        quoted (str, optional): Whom the paper took it from; empty: its own run. (default: ``""``)
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
        id (str): ``<paper>/<table>``, such as ``kmip-paper/table2``.
        title (str): In our words.
        hardware (str): As stated, or empty.
        columns (Mapping): Name -> ``metric``, ``better`` (``higher``, ``lower`` or None), ``unit``.
        rows (Mapping): Row -> column -> cell; a dash of the paper is not there.
        notes (tuple, optional): What a reader of the numbers should know. (default: ``()``)
    """

    id: str
    title: str
    hardware: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, PrintedCell]]
    notes: tuple[str, ...] = field(default_factory=tuple)


def load_printed(*folders: Path) -> dict[str, PrintedTable]:
    """Return the tables of all YAML files in some folders, by id.

    A file is ``table -> {title, hardware, seeds, columns, rows, quoted, notes}``; ``seeds`` is a number, or a list of
    ``{rows, columns, n}`` of which the first that fits holds; ``quoted`` is ``[{rows, columns, source}]``; a cell is a
    number or a string, null is a dash. Numbers with trailing zeros stand in quotes.

    Raises:
        ManifestError: a file is no YAML, has a key that is not known, or names a row or column that is not there.
    """
    return {
        f"{file.stem}/{name}": _table(f"{file.stem}/{name}", entry)
        for folder in folders
        for file in sorted(folder.glob("*.yaml"))
        for name, entry in read_yaml(file, error_type=ManifestError, empty=True).items()
    }


def _table(key: str, entry: Mapping[str, Any]) -> PrintedTable:
    check_keys(entry, KEYS, key, needed=("title", "columns", "rows"))
    seeds = entry.get("seeds")
    counts = seeds if isinstance(seeds, list) else [{"n": seeds}]
    quoted = entry.get("quoted", [])
    for value, rules in (("n", counts), ("source", quoted)):
        for rule in rules:
            check_keys(rule, ("rows", "columns", value), key, needed=(value,))
            _check_names(rule.get("rows", ()), entry["rows"], f"{key}: row")
            _check_names(rule.get("columns", ()), entry["columns"], f"{key}: column")
    rows = {}
    for row, cells in entry["rows"].items():
        _check_names(cells, entry["columns"], f"{key}, {row}: column")
        rows[str(row)] = {
            column: _cell(text, _first(counts, row, column, "n"), _first(quoted, row, column, "source") or "")
            for column, text in cells.items()
            if text is not None
        }
    notes = tuple(entry.get("notes", ()))
    if strange := [note for note in notes if not isinstance(note, str)]:
        raise ManifestError(f"{key}: a note is no text, {strange[0]}: put it in quotes")
    return PrintedTable(key, entry["title"], entry.get("hardware", ""), entry["columns"], rows, notes)


def _check_names(names: Any, known: Any, where: str) -> None:
    for name in names:
        if name not in known:
            raise ManifestError(f"{where} {name!r} is not in the table.{suggest(name, known)}")


def _first(rules: list[Mapping[str, Any]], row: str, column: str, value: str) -> Any:
    fitting = (rule for rule in rules if row in rule.get("rows", [row]) and column in rule.get("columns", [column]))
    return next((rule[value] for rule in fitting), None)


def _cell(text: Any, n: int | None, quoted: str) -> PrintedCell:
    found = NUMBER.match(str(text))
    if not found:
        return PrintedCell(str(text), n=n, quoted=quoted)
    mean, thousands, std = found.groups()
    return PrintedCell(str(text), float(mean) * (1000 if thousands else 1), float(std) if std else None, n, quoted)
