"""A table in Markdown that reads well in a terminal, too: aligned, and broken into blocks where it would be wide."""

from __future__ import annotations

import textwrap

from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.report.table_layout import HEADINGS, Layout, Text, blocks, lay_out

WIDTH = 118  # characters of a line
MARKS = {0: ("", ""), 1: ("**", "**"), 2: ("*", "*"), 3: ("", " (3rd)")}
LEGEND = "**best**, *second*, third (3rd) of a column: ours among our complete cells, the paper's among the printed"


def markdown(table: ResultTable, partial: bool = False) -> str:
    """Return the table in GitHub's Markdown; the rows' names stand in each block."""
    layout = lay_out(table, partial)
    facts = _facts(layout)
    lines = [f"### {layout.title}", "", *facts, *([""] if facts else [])]
    names = [["", *layout.rows]] + ([["settings", *layout.settings.values()]] if layout.settings else [])
    strips = {column: _strips(layout, column, kinds) for column, kinds in layout.columns.items()}
    sizes = {column: _width(found) for column, found in strips.items()}
    for columns in blocks(sizes, WIDTH - _width(names)):
        lines += [*_lines(names, [strip for column in columns for strip in strips[column]]), ""]
    notes = [f"{LEGEND}."] if layout.ranked else []
    notes += [f"[{mark}] quoted by the paper from {source}" for mark, source in layout.quoted.items()]
    return "\n".join([*lines, *map(_item, [*notes, *layout.notes])]) + "\n"


def _width(strips: list[list[str]]) -> int:
    return sum(3 + max(map(len, strip)) for strip in strips)


def _item(note: str) -> str:
    return textwrap.fill(f"- {note}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _facts(layout: Layout) -> list[str]:
    columns: dict[str, list[str]] = {}
    for column, facts in layout.facts.items():
        columns.setdefault(facts, []).append(column)
    return [f"{', '.join(names)}: {facts}." for facts, names in columns.items() if facts]


def _strips(layout: Layout, column: str, kinds: tuple[str, ...]) -> list[list[str]]:
    """Return what stands below each other, the heading first, for each kind of entry of a column."""
    headings = [HEADINGS[kind] for kind in kinds]
    headings[0] = column if kinds == ("ours",) else f"{column}: {headings[0]}"
    entries = [cells[column] for cells in layout.rows.values()]
    return [[heading, *_aligned([texts[i] for texts in entries])] for i, heading in enumerate(headings)]


def _aligned(texts: list[Text]) -> list[str]:
    """Return the entries with their marks; what follows a number is filled up, so that digits stand below digits."""
    marks = [MARKS[text.rank] for text in texts]
    ends = [end + (f" [{text.mark}]" if text.mark else "") for text, (_, end) in zip(texts, marks, strict=True)]
    width = max(map(len, ends), default=0)
    return [start + text.text + end.ljust(width) for text, (start, _), end in zip(texts, marks, ends, strict=True)]


def _lines(names: list[list[str]], entries: list[list[str]]) -> list[str]:
    """Return the lines of a block: names to the left, numbers to the right."""
    strips = [[text.replace("|", "\\|") for text in strip] for strip in (*names, *entries)]
    filled = []
    for place, strip in enumerate(strips):
        width, left = max(3, *map(len, strip)), place < len(names)
        texts = [text.ljust(width) if left else text.rjust(width) for text in strip]
        rule = f":{'-' * (width - 1)}" if left else f"{'-' * (width - 1)}:"
        filled.append([texts[0], rule, *texts[1:]])
    return [f"| {' | '.join(row)} |" for row in zip(*filled, strict=True)]
