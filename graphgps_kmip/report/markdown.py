"""A table in Markdown that reads well in a terminal, too: aligned, and broken into blocks where it would be wide."""

from __future__ import annotations

from graphgps_kmip.report.cell_text import Text
from graphgps_kmip.report.layout import HEADINGS, Layout, blocks, lay_out
from graphgps_kmip.report.result_table import ResultTable

WIDTH = 100  # characters, without names and settings of the rows
MARKS = {0: ("", ""), 1: ("**", "**"), 2: ("*", "*"), 3: ("", " (3rd)")}
LEGEND = (
    "**best**, *second* and third (3rd) of a column, of our complete cells and of the printed ones, each by itself."
)


def markdown(table: ResultTable, partial: bool = False) -> str:
    """Return the table in GitHub's Markdown; the rows' names stand in each block."""
    layout = lay_out(table, partial)
    facts = _facts(layout)
    lines = [f"### {layout.title}", "", *facts, *([""] if facts else [])]
    for columns in blocks(layout, WIDTH):
        strips = [["", *layout.rows], ["settings", *layout.settings.values()]]
        strips += [strip for column, kinds in columns.items() for strip in _strips(layout, column, kinds)]
        lines += [*_lines(strips), ""]
    lines += [f"- {LEGEND}"] if layout.ranked else []
    lines += [f"- [{mark}] quoted by the paper from {source}" for mark, source in layout.quoted.items()]
    return "\n".join([*lines, *(f"- {note}" for note in layout.notes)]) + "\n"


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


def _lines(strips: list[list[str]]) -> list[str]:
    strips = [[text.replace("|", "\\|") for text in strip] for strip in strips]
    widths = [max(3, *map(len, strip)) for strip in strips]
    # Names to the left, numbers to the right.
    rules = [f":{'-' * (width - 1)}" if i < 2 else f"{'-' * (width - 1)}:" for i, width in enumerate(widths)]
    rows = [
        [
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in zip(*strips, strict=True)
    ]
    return [f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:])]
