"""A table in HTML, to be put into a page: no style of its own, but classes."""

from __future__ import annotations

from html import escape

from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.report.table_layout import HEADINGS, Layout, Text, blocks, lay_out, sizes

WIDTH = 120  # characters side by side: of what is wider, the columns stand below each other
RANKS = {0: "", 1: "best", 2: "second", 3: "third"}
LEGEND = (
    '<span class="best">best</span>, <span class="second">second</span>, <span class="third">third</span> of a '
    "column: ours among our complete cells, the paper's among the printed."
)


def html(table: ResultTable, partial: bool = False) -> str:
    """Return ``<table class="results">``, several where it would be wide, and ``<ul class="notes">``.

    Titles of cells say where numbers come from.
    """
    layout = lay_out(table, partial)
    notes = [LEGEND] if layout.ranked else []
    notes += [f"<sup>{mark}</sup> quoted by the paper from {escape(text)}" for mark, text in layout.quoted.items()]
    lines = [
        f'<p class="title">{escape(layout.title)}</p>',
        *(line for columns in blocks(sizes(layout), WIDTH) for line in _block(layout, columns)),
        '<ul class="notes">',
        *(f"<li>{note}</li>" for note in [*notes, *map(escape, layout.notes)]),
        "</ul>",
    ]
    return "\n".join(lines) + "\n"


def _block(layout: Layout, columns: list[str]) -> list[str]:
    return [
        '<div class="wide">',
        f'<table class="results" aria-label="{escape(layout.title)}">',
        "<thead>",
        *_head(layout, columns),
        "</thead>",
        "<tbody>",
        *(_row(layout, row, columns) for row in layout.rows),
        "</tbody>",
        "</table>",
        "</div>",
    ]


def _head(layout: Layout, columns: list[str]) -> list[str]:
    groups = [
        f'<th scope="colgroup" colspan="{len(layout.columns[column])}">{escape(column)}'
        + (f' <span class="facts">{escape(layout.facts[column])}</span>' if layout.facts[column] else "")
        + "</th>"
        for column in columns
    ]
    kinds = [
        f'<th scope="col" class="{kind}">{HEADINGS[kind]}</th>' for column in columns for kind in layout.columns[column]
    ]
    corner = '<td rowspan="2"></td>'
    if layout.settings:
        corner += '<th scope="col" rowspan="2" class="settings">settings</th>'
    return [f"<tr>{corner}{''.join(groups)}</tr>", f"<tr>{''.join(kinds)}</tr>"]


def _row(layout: Layout, row: str, columns: list[str]) -> str:
    entries = [_entry(text) for column in columns for text in layout.rows[row][column]]
    settings = f'<td class="settings">{escape(layout.settings[row])}</td>' if layout.settings else ""
    return f'<tr><th scope="row">{escape(row)}</th>{settings}{"".join(entries)}</tr>'


def _entry(text: Text) -> str:
    classes = " ".join(one for one in (text.kind, RANKS[text.rank], "" if text.complete else "incomplete") if one)
    title = f' title="{escape(text.title)}"' if text.title else ""
    mark = f"<sup>{text.mark}</sup>" if text.mark else ""
    return f'<td class="{classes}"{title}>{escape(text.text)}{mark}</td>'
