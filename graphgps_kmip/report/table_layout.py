"""A result table in words, before any format: what stands in each cell, its rank, and the notes below."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from graphgps_kmip.experiments.state import State
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
        title: one line, with the ids of table and experiment, and how many runs are finished.
        columns: name -> kinds of its entries.
        facts: column -> ``accuracy, %, higher is better``.
        rows: row -> column -> entries, one for each kind.
        settings: row -> word; empty where all rows have the same, which the notes tell.
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
        title=f"{'SAMPLE, no results: ' if table.sample else ''}{table.title} ({_identity(table)})",
        columns=columns,
        facts={column: _facts(facts) for column, facts in table.columns.items()},
        rows=rows,
        settings=table.settings if len(set(table.settings.values())) > 1 else {},
        ranked=any(text.rank for cells in rows.values() for texts in cells.values() for text in texts),
        notes=tuple(notes(table, partial)),
        quoted={mark: source for source, mark in marks.items()},
    )


def heading(layout: Layout, column: str) -> str:
    """Return the column's name with its facts, which stand above all of its entries."""
    facts = layout.facts[column]
    return f"{column} ({facts})" if facts else column


def sizes(layout: Layout) -> dict[str, int]:
    """Return column -> how many characters its entries are wide, side by side; marks are not counted."""
    found = {}
    for column, kinds in layout.columns.items():
        entries = [[len(text.text) for text in cells[column]] for cells in layout.rows.values()]
        strips = zip([len(HEADINGS[kind]) for kind in kinds], *entries, strict=True)
        found[column] = max(len(heading(layout, column)), sum(3 + max(strip) for strip in strips))
    return found


def blocks(sizes: Mapping[str, int], width: int) -> list[list[str]]:
    """Return the columns in groups that fit side by side.

    Args:
        sizes: column -> how wide it is.
        width: of a group, as far as one column allows.
    """
    found: list[list[str]] = [[]]
    for column, size in sizes.items():
        if found[-1] and sum(sizes[one] for one in found[-1]) + size > width:
            found.append([])
        found[-1].append(column)
    return found


def _identity(table: ResultTable) -> str:
    """Return ``kmip-paper/table2, K-5.2, 143 of 144 runs``; a command that fills the table is one run."""
    ours = [cell.ours for cells in table.rows.values() for cell in cells.values() if cell.ours]
    states = {status.path: status.state for one in ours for status in [*one.sources.values(), *one.unfinished.values()]}
    done = sum(state is State.DONE for state in states.values())
    runs = [f"{done} of {len(states)} run{'s' * (len(states) > 1)}"] if states else []
    return ", ".join([*dict.fromkeys([table.id, table.experiment]), *runs])


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
