"""A table in HTML, to be put into a page: no style of its own, but classes."""

from __future__ import annotations

from html import escape

from graphgps_kmip.report.cell_text import Text
from graphgps_kmip.report.layout import HEADINGS, Layout, lay_out
from graphgps_kmip.report.result_table import ResultTable

RANKS = {0: "", 1: "best", 2: "second", 3: "third"}
LEGEND = (
    '<span class="best">best</span>, <span class="second">second</span> and <span class="third">third</span> of a '
    "column, of our complete cells and of the printed ones, each by itself."
)


def html(table: ResultTable, partial: bool = False) -> str:
    """Return ``<table class="results">`` and ``<ul class="notes">``; titles of cells say where numbers come from."""
    layout = lay_out(table, partial)
    notes = [LEGEND] if layout.ranked else []
    notes += [f"<sup>{mark}</sup> quoted by the paper from {escape(text)}" for mark, text in layout.quoted.items()]
    lines = [
        f'<table class="results{" sample" if table.sample else ""}">',
        f"<caption>{escape(layout.title)}</caption>",
        "<thead>",
        *_head(layout),
        "</thead>",
        "<tbody>",
        *(_row(layout, row) for row in layout.rows),
        "</tbody>",
        "</table>",
        '<ul class="notes">',
        *(f"<li>{note}</li>" for note in [*notes, *map(escape, layout.notes)]),
        "</ul>",
    ]
    return "\n".join(lines) + "\n"


def _head(layout: Layout) -> list[str]:
    groups = [
        f'<th scope="colgroup" colspan="{len(kinds)}">{escape(column)}'
        + (f' <span class="facts">{escape(layout.facts[column])}</span>' if layout.facts[column] else "")
        + "</th>"
        for column, kinds in layout.columns.items()
    ]
    kinds = [
        f'<th scope="col" class="{kind}">{HEADINGS[kind]}</th>' for kinds in layout.columns.values() for kind in kinds
    ]
    corner = '<td rowspan="2"></td><th scope="col" rowspan="2" class="settings">settings</th>'
    return [f"<tr>{corner}{''.join(groups)}</tr>", f"<tr>{''.join(kinds)}</tr>"]


def _row(layout: Layout, row: str) -> str:
    entries = [_entry(text) for texts in layout.rows[row].values() for text in texts]
    settings = f'<td class="settings">{escape(layout.settings[row])}</td>'
    return f'<tr><th scope="row">{escape(row)}</th>{settings}{"".join(entries)}</tr>'


def _entry(text: Text) -> str:
    classes = " ".join(one for one in (text.kind, RANKS[text.rank], "" if text.complete else "incomplete") if one)
    title = f' title="{escape(text.title)}"' if text.title else ""
    mark = f"<sup>{text.mark}</sup>" if text.mark else ""
    return f'<td class="{classes}"{title}>{escape(text.text)}{mark}</td>'
