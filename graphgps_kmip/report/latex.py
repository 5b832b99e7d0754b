r"""A table in LaTeX, broken into blocks where it would be wide; it needs ``\usepackage{booktabs, adjustbox}``.

A table of many blocks is higher than a page, where LaTeX warns of a float too large: cut it by hand.
"""

from __future__ import annotations

import re

from graphgps_kmip.report.result_table import ResultTable
from graphgps_kmip.report.table_layout import HEADINGS, Layout, Text, blocks, heading, lay_out, sizes

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
    r"\textbf{best}, \underline{second}, \textit{third} of a column: "
    "ours among our complete cells, the paper's among the printed."
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
        r"\begin{table}[p]",
        r"\centering\footnotesize",
        rf"\caption{{{escaped(layout.title)}}}",
        *(line for columns in blocks(sizes(layout), WIDTH) for line in _tabular(layout, columns)),
        r"\begin{minipage}{\linewidth}\scriptsize",
        *(f"{note}\\par" for note in [*notes, *map(escaped, layout.notes)]),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _tabular(layout: Layout, columns: list[str]) -> list[str]:
    names = ["", "settings"] if layout.settings else [""]
    groups, rules, start = [], [], 1 + len(names)
    for column in columns:
        kinds = layout.columns[column]
        groups.append(rf"\multicolumn{{{len(kinds)}}}{{c}}{{{escaped(heading(layout, column))}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + len(kinds) - 1}}}")
        start += len(kinds)
    headings = [escaped(HEADINGS[kind]) for column in columns for kind in layout.columns[column]]
    return [
        r"\begin{adjustbox}{max width=\linewidth}",
        rf"\begin{{tabular}}{{{'l' * len(names)}{'r' * len(headings)}}}",
        r"\toprule",
        rf"{' & '.join([*[''] * len(names), *groups])} \\",
        " ".join(rules),
        rf"{' & '.join([*names, *headings])} \\",
        r"\midrule",
        *(_row(layout, row, columns) for row in layout.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        r"\par\medskip",
    ]


def _row(layout: Layout, row: str, columns: list[str]) -> str:
    texts = [_text(text) for column in columns for text in layout.rows[row][column]]
    names = [row, layout.settings[row]] if layout.settings else [row]
    return rf"{' & '.join([*map(escaped, names), *texts])} \\"


def _text(text: Text) -> str:
    words = MARKS[text.rank].format(NEGATIVE.sub("$-$", escaped(text.text)))
    return words + (rf"\textsuperscript{{{text.mark}}}" if text.mark else "")
