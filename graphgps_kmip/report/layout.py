"""A result table in words, before any format: what stands in each cell, its rank, and the notes below."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from graphgps_kmip.report.cell_text import (
    Text,
    counts_text,
    difference_text,
    our_text,
    paper_text,
    shown_decimals,
)
from graphgps_kmip.report.notes import notes
from graphgps_kmip.report.ranks import our_ranks, printed_ranks
from graphgps_kmip.report.result_table import ResultTable

HEADINGS = {"ours": "ours", "paper": "paper", "difference": "difference [95 %]", "n": "n"}


@dataclass(frozen=True)
class Layout:
    """A table in words.

    Args:
        title: one line.
        columns: name -> kinds of its entries.
        facts: column -> ``accuracy, %, higher is better``.
        rows: row -> column -> entries, one for each kind.
        settings: row -> word.
        ranked: whether an entry has a rank.
        notes: sentences.
        quoted: letter -> whom the paper quotes.
    """

    title: str
    columns: Mapping[str, tuple[str, ...]]
    facts: Mapping[str, str]
    rows: Mapping[str, Mapping[str, tuple[Text, ...]]]
    settings: Mapping[str, str]
    ranked: bool
    notes: tuple[str, ...]
    quoted: Mapping[str, str]


def lay_out(table: ResultTable, partial: bool = False) -> Layout:
    """Return the words of a table; with `partial` means of the finished runs where some are missing."""
    columns = {column: _kinds(table, column) for column in table.columns}
    marks = _marks(table)
    rows: dict[str, dict[str, tuple[Text, ...]]] = {row: {} for row in table.rows}
    for column, kinds in columns.items():
        ours, paper = our_ranks(table, column), printed_ranks(table, column)
        for row in table.rows:
            cell, decimals = table.rows[row][column], shown_decimals(table, row, column)
            texts = {
                "ours": our_text(cell.ours, decimals, partial, table.sample, ours.get(row, 0)),
                "paper": paper_text(cell.printed, marks, paper.get(row, 0)),
                "difference": difference_text(cell.difference(partial), decimals),
                "n": Text(counts_text(cell, "paper" in kinds), "n"),
            }
            rows[row][column] = tuple(texts[kind] for kind in kinds)
    return Layout(
        title=f"{'SAMPLE, no results: ' if table.sample else ''}{table.title} ({table.id})",
        columns=columns,
        facts={column: _facts(facts) for column, facts in table.columns.items()},
        rows=rows,
        settings=table.settings,
        ranked=any(text.rank for cells in rows.values() for texts in cells.values() for text in texts),
        notes=tuple(notes(table)),
        quoted={mark: source for source, mark in marks.items()},
    )


def blocks(layout: Layout, width: int) -> list[dict[str, tuple[str, ...]]]:
    """Return the columns in groups that fit side by side.

    Args:
        layout: of the table.
        width: characters for the entries of a group, as far as one column allows; marks are not counted.
    """
    found: list[dict[str, tuple[str, ...]]] = [{}]
    taken = 0
    for column, kinds in layout.columns.items():
        headings = [len(HEADINGS[kind]) for kind in kinds]
        headings[0] += len(column)
        entries = [[len(text.text) for text in cells[column]] for cells in layout.rows.values()]
        size = sum(3 + max(strip) for strip in zip(headings, *entries, strict=True))  # 3: between two entries
        if found[-1] and taken + size > width:
            found.append({})
            taken = 0
        found[-1][column] = kinds
        taken += size
    return found


def _marks(table: ResultTable) -> dict[str, str]:
    """Return source -> letter, in the order of the table."""
    cells = (cell for cells in table.rows.values() for cell in cells.values())
    sources = dict.fromkeys(cell.printed.quoted for cell in cells if cell.printed and cell.printed.quoted)
    letters = string.ascii_lowercase
    return {source: letters[i % len(letters)] * (1 + i // len(letters)) for i, source in enumerate(sources)}


def _kinds(table: ResultTable, column: str) -> tuple[str, ...]:
    if table.sample:
        return ("ours",)
    if any(cells[column].printed for cells in table.rows.values()):
        return ("ours", "paper", "difference", "n")
    return ("ours", "n")


def _facts(facts: Mapping[str, object]) -> str:
    better = f"{facts['better']} is better" if facts.get("better") else ""
    return ", ".join(str(part) for part in (facts.get("metric"), facts.get("unit"), better) if part)
