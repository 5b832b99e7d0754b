r"""Table formats: a result table as Markdown, LaTeX, CSV or HTML, all from the same `Layout`.

Markdown reads well in a terminal, too. In all but CSV, columns that do not fit side by side are in blocks below each
other. LaTeX needs ``\usepackage{booktabs, adjustbox}``; a table of many blocks is higher than a page, where it warns
of a float too large: cut it by hand. HTML has classes and no style of its own, to be put into a page. The CSV export
has one line for each cell, with every fact in full precision.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Environment, StrictUndefined

from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_layout import HEADINGS, Layout, Text, blocks, heading, lay_out, sizes

# Characters side by side.
MARKDOWN_WIDTH = 118
LATEX_WIDTH = 100
HTML_WIDTH = 120

LEGEND = "{}, {}, {} of a column: ours among our complete cells, the paper's among the printed."
MARKDOWN_LEGEND = LEGEND.format("**best**", "*second*", "third (3rd)")
LATEX_LEGEND = LEGEND.format(r"\textbf{best}", r"\underline{second}", r"\textit{third}")
# rank -> what is around an entry
MARKDOWN_RANKS = {0: ("", ""), 1: ("**", "**"), 2: ("*", "*"), 3: ("", " (3rd)")}
LATEX_RANKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
HTML_RANKS = {0: "", 1: "best", 2: "second", 3: "third"}

# "[" too: after the end of a row LaTeX would take it for an argument.
ESCAPES = {one: f"\\{one}" for one in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "→": r"$\to$",
    "–": "--",
    "—": "---",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
}
NEGATIVE = re.compile(r"(?<![\w-])-(?=\d)")


def markdown(table: ResultTable, partial: bool = False) -> str:
    """Return the table in GitHub's Markdown; the rows' names are in each block."""
    layout = lay_out(table, partial)
    facts = _facts_above(layout)
    lines = [f"### {layout.title}", "", *facts, *([""] if facts else [])]
    names = [["", *layout.rows]] + ([["settings", *layout.settings.values()]] if layout.settings else [])
    strips = {column: _strips(layout, column, kinds) for column, kinds in layout.columns.items()}
    sizes = {column: _strip_width(found) for column, found in strips.items()}
    for columns in blocks(sizes, MARKDOWN_WIDTH - _strip_width(names)):
        lines += [*_markdown_lines(names, [strip for column in columns for strip in strips[column]]), ""]
    notes = [MARKDOWN_LEGEND] if layout.ranked else []
    notes += [f"[{mark}] quoted by the paper from {source}" for mark, source in layout.quoted.items()]
    return "\n".join([*lines, *map(_item, [*notes, *layout.notes])]) + "\n"


def _strip_width(strips: list[list[str]]) -> int:
    return sum(3 + max(map(len, strip)) for strip in strips)


def _item(note: str) -> str:
    return textwrap.fill(
        f"- {note}", MARKDOWN_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _facts_above(layout: Layout) -> list[str]:
    columns: dict[str, list[str]] = {}
    for column, facts in layout.facts.items():
        columns.setdefault(facts, []).append(column)
    return [f"{', '.join(names)}: {facts}." for facts, names in columns.items() if facts]


def _strips(layout: Layout, column: str, kinds: tuple[str, ...]) -> list[list[str]]:
    """Return the texts below each other, the heading first, for each kind of entry of a column."""
    headings = [HEADINGS[kind] for kind in kinds]
    headings[0] = column if kinds == ("ours",) else f"{column}: {headings[0]}"
    entries = [cells[column] for cells in layout.rows.values()]
    return [[heading, *_aligned([texts[i] for texts in entries])] for i, heading in enumerate(headings)]


def _aligned(texts: list[Text]) -> list[str]:
    """Return the entries with their marks, padded after the number so that digits are below digits."""
    marks = [MARKDOWN_RANKS[text.rank] for text in texts]
    ends = [end + (f" [{text.mark}]" if text.mark else "") for text, (_, end) in zip(texts, marks, strict=True)]
    width = max(map(len, ends), default=0)
    return [start + text.text + end.ljust(width) for text, (start, _), end in zip(texts, marks, ends, strict=True)]


def _markdown_lines(names: list[list[str]], entries: list[list[str]]) -> list[str]:
    """Return the lines of a block: names to the left, numbers to the right."""
    strips = [[text.replace("|", "\\|") for text in strip] for strip in (*names, *entries)]
    filled = []
    for place, strip in enumerate(strips):
        width, left = max(3, *map(len, strip)), place < len(names)
        texts = [text.ljust(width) if left else text.rjust(width) for text in strip]
        rule = f":{'-' * (width - 1)}" if left else f"{'-' * (width - 1)}:"
        filled.append([texts[0], rule, *texts[1:]])
    return [f"| {' | '.join(row)} |" for row in zip(*filled, strict=True)]


def latex(table: ResultTable, partial: bool = False) -> str:
    """Return a ``table`` environment, at most as wide as the line, its notes below."""
    layout = lay_out(table, partial)
    notes = [LATEX_LEGEND] if layout.ranked else []
    notes += [
        rf"\textsuperscript{{{mark}}} quoted by the paper from {_escaped(source)}."
        for mark, source in layout.quoted.items()
    ]
    lines = [
        r"% \usepackage{booktabs, adjustbox}",
        r"\begin{table}[p]",
        r"\centering\footnotesize",
        rf"\caption{{{_escaped(layout.title)}}}",
        *(line for columns in blocks(sizes(layout), LATEX_WIDTH) for line in _tabular(layout, columns)),
        r"\begin{minipage}{\linewidth}\scriptsize",
        *(f"{note}\\par" for note in [*notes, *map(_escaped, layout.notes)]),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Return the text with all that LaTeX would take for a command made harmless."""
    return "".join(ESCAPES.get(one, one) for one in text)


def _tabular(layout: Layout, columns: list[str]) -> list[str]:
    names = ["", "settings"] if layout.settings else [""]
    groups, rules, start = [], [], 1 + len(names)
    for column in columns:
        kinds = layout.columns[column]
        groups.append(rf"\multicolumn{{{len(kinds)}}}{{c}}{{{_escaped(heading(layout, column))}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + len(kinds) - 1}}}")
        start += len(kinds)
    headings = [_escaped(HEADINGS[kind]) for column in columns for kind in layout.columns[column]]
    return [
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{{'l' * len(names)}{'r' * len(headings)}}}",
        r"\toprule",
        rf"{' & '.join([*[''] * len(names), *groups])} \\",
        " ".join(rules),
        rf"{' & '.join([*names, *headings])} \\",
        r"\midrule",
        *(_latex_row(layout, row, columns) for row in layout.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        r"\par\medskip",
    ]


def _latex_row(layout: Layout, row: str, columns: list[str]) -> str:
    texts = [_latex_text(text) for column in columns for text in layout.rows[row][column]]
    names = [row, layout.settings[row]] if layout.settings else [row]
    return rf"{' & '.join([*map(_escaped, names), *texts])} \\"


def _latex_text(text: Text) -> str:
    words = LATEX_RANKS[text.rank].format(NEGATIVE.sub("$-$", _escaped(text.text)))
    return words + (rf"\textsuperscript{{{text.mark}}}" if text.mark else "")


ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
)
HTML = """\
<p class="title">{{ layout.title }}</p>
{% for columns in blocks %}
<div class="wide">
<table class="results" aria-label="{{ layout.title }}">
<thead>
<tr><td rowspan="2"></td>
{% if layout.settings %}
<th scope="col" rowspan="2" class="settings">settings</th>
{% endif %}
{% for column in columns %}
<th scope="colgroup" colspan="{{ layout.columns[column] | length }}">{{ column -}}
{% if layout.facts[column] %} <span class="facts">{{ layout.facts[column] }}</span>{% endif %}</th>
{% endfor %}
</tr>
<tr>
{% for column in columns %}
{% for kind in layout.columns[column] %}
<th scope="col" class="{{ kind }}">{{ headings[kind] }}</th>
{% endfor %}
{% endfor %}
</tr>
</thead>
<tbody>
{% for row, cells in layout.rows.items() %}
<tr><th scope="row">{{ row }}</th>
{% if layout.settings %}
<td class="settings">{{ layout.settings[row] }}</td>
{% endif %}
{% for column in columns %}
{% for text in cells[column] %}
<td class="{{ classes(text) }}"{% if text.title %} title="{{ text.title }}"{% endif %}>{{ text.text -}}
{% if text.mark %}<sup>{{ text.mark }}</sup>{% endif %}</td>
{% endfor %}
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endfor %}
<ul class="notes">
{% if layout.ranked %}
<li>{{ legend | safe }}</li>
{% endif %}
{% for mark, source in layout.quoted.items() %}
<li><sup>{{ mark }}</sup> quoted by the paper from {{ source }}</li>
{% endfor %}
{% for note in layout.notes %}
<li>{{ note }}</li>
{% endfor %}
</ul>
"""


def html(table: ResultTable, partial: bool = False) -> str:
    """Return ``<table class="results">``, several where it would be wide, and ``<ul class="notes">``.

    Titles of cells say where numbers come from.
    """
    layout = lay_out(table, partial)
    return ENVIRONMENT.from_string(HTML).render(
        layout=layout,
        blocks=blocks(sizes(layout), HTML_WIDTH),
        headings=HEADINGS,
        legend=LEGEND.format(*(f'<span class="{HTML_RANKS[rank]}">{HTML_RANKS[rank]}</span>' for rank in (1, 2, 3))),
        classes=_classes,
    )


def _classes(text: Text) -> str:
    return " ".join(one for one in (text.kind, HTML_RANKS[text.rank], "" if text.complete else "incomplete") if one)


def csv_export(table: ResultTable, partial: bool = False) -> str:
    """Return the cells as lines below one heading; an unknown value is empty, lists are separated by blanks.

    Without `partial`, mean, deviation and difference of a cell that lacks runs are empty.
    """
    lines = [
        {"table": table.id, "row": row, "column": column}
        | _csv_facts(cell, partial)
        | {"settings": table.settings[row], "sample": table.sample}
        for row, cells in table.rows.items()
        for column, cell in cells.items()
    ]
    file = io.StringIO()
    empty = {"table": "", "row": "", "column": ""} | _csv_facts(Cell(), partial) | {"settings": "", "sample": ""}
    writer = csv.DictWriter(file, list(empty), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _csv_facts(cell: Cell, partial: bool) -> Mapping[str, Any]:
    ours, printed = cell.ours or Ours(), cell.printed
    shown = ours.shown(partial)
    difference = cell.difference(partial)
    facts = {
        "ours_text": ours.text,
        "ours_mean": ours.mean if shown else None,
        "ours_std": ours.std if shown else None,
        "ours_n": ours.n,
        "wanted": ours.wanted,
        **{str(state): _csv_keys(ours, state) for state in State if state is not State.DONE},
        "published": ours.published,
        "seeds": " ".join(map(str, ours.seeds)),
        "values": " ".join(map(repr, ours.values)),
    }
    facts |= {f"paper_{name}": getattr(printed, name, None) for name in ("text", "mean", "std", "n")}
    facts["quoted"] = getattr(printed, "quoted", None)
    names = {"value": "difference", "low": "low", "high": "high", "df": "df", "reason": "no_interval"}
    return facts | {name: getattr(difference, field, None) for field, name in names.items()}


def _csv_keys(ours: Ours, state: State) -> str:
    return " ".join(str(key) for key, status in ours.unfinished.items() if status.state is state)


# name -> format(table, partial=False): with `partial`, cells that lack runs show the mean of those that are finished.
FORMATS: dict[str, Callable[..., str]] = {"md": markdown, "tex": latex, "csv": csv_export, "html": html}
