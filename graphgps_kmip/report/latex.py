r"""A table in LaTeX: ``\usepackage{booktabs, adjustbox}``, broken into blocks where it would be wide."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphgps_kmip.report.cell_text import Text
from graphgps_kmip.report.layout import HEADINGS, Layout, blocks, lay_out
from graphgps_kmip.report.result_table import ResultTable

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
WIDTH = 100  # characters side by side; wider ones stand below each other
NEGATIVE = re.compile(r"(?<![\w-])-(?=\d)")
MARKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
LEGEND = (
    r"\textbf{best}, \underline{second} and \textit{third} of a column, of our complete cells and of the printed ones, "
    "each by itself."
)


def escaped(text: str) -> str:
    """Return the text with all that LaTeX would take for a command made harmless."""
    return "".join(ESCAPES.get(one, one) for one in text)


def latex(table: ResultTable, partial: bool = False) -> str:
    """Return a ``table`` environment, at most as wide as the line, its notes below."""
    layout = lay_out(table, partial)
    notes = [LEGEND] if layout.ranked else []
    notes += [
        rf"\textsuperscript{{{mark}}} quoted by the paper from {escaped(source)}."
        for mark, source in layout.quoted.items()
    ]
    lines = [
        r"% \usepackage{booktabs, adjustbox}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(layout.title)}}}",
        *(line for columns in blocks(layout, WIDTH) for line in _tabular(layout, columns)),
        r"\begin{minipage}{\linewidth}\footnotesize",
        *(f"{note}\\par" for note in [*notes, *map(escaped, layout.notes)]),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tabular(layout: Layout, columns: Mapping[str, tuple[str, ...]]) -> list[str]:
    groups, rules, start = [], [], 3  # after the row's name and its settings
    for column, kinds in columns.items():
        facts = layout.facts[column]
        name = escaped(f"{column} ({facts})" if facts else column)
        groups.append(rf"\multicolumn{{{len(kinds)}}}{{c}}{{{name}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + len(kinds) - 1}}}")
        start += len(kinds)
    headings = [escaped(HEADINGS[kind]) for kinds in columns.values() for kind in kinds]
    return [
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{ll{'r' * len(headings)}}}",
        r"\toprule",
        rf"{' & '.join(['', '', *groups])} \\",
        " ".join(rules),
        rf"{' & '.join(['', 'settings', *headings])} \\",
        r"\midrule",
        *(_row(layout, row, columns) for row in layout.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        r"\par\medskip",
    ]


def _row(layout: Layout, row: str, columns: Mapping[str, tuple[str, ...]]) -> str:
    texts = [_text(text) for column in columns for text in layout.rows[row][column]]
    return rf"{' & '.join([escaped(row), escaped(layout.settings[row]), *texts])} \\"


def _text(text: Text) -> str:
    words = MARKS[text.rank].format(NEGATIVE.sub("$-$", escaped(text.text)))
    return words + (rf"\textsuperscript{{{text.mark}}}" if text.mark else "")
