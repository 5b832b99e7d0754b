r"""Table formats: a result table as Markdown, LaTeX, HTML or CSV, from pandas DataFrames of the same entries.

A cell has four entries: our mean (or the progress of its runs), the printed number, the difference with its Welch
interval, and the counts. LaTeX needs ``\usepackage{booktabs, adjustbox}``. HTML has classes and no style of its own.
"""

from __future__ import annotations

import html
import math
import re
import string
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
from pandas.io.formats.style import Styler

from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.table_notes import PUBLISHED, Comparison, table_notes
from graphgps_kmip.report.welch import difference_text

WIDTH = 118  # characters side by side
DASH = "-"
HEADINGS = {"ours": "ours", "paper": "paper", "difference": "difference [95 %]", "n": "n", "settings": "settings"}
LEGEND = "{}, {}, {} of a column: ours among our complete cells, the paper's among the printed."
# rank -> what is around an entry
MARKDOWN_RANKS = {0: ("", ""), 1: ("**", "**"), 2: ("*", "*"), 3: ("", " (3rd)")}
LATEX_RANKS = {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}", 3: r"\textit{{{}}}"}
HTML_RANKS = {0: "", 1: "best", 2: "second", 3: "third"}

# "[" too: after the end of a row LaTeX would take it for an argument.
ESCAPES = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "–": "--", "—": "---", "†": r"\dag{}", "‡": r"\ddag{}"},
    **{"±": r"$\pm$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$"},
}
NEGATIVE = re.compile(r"(?<![\w-])-(?=\d)")


class Entry(NamedTuple):
    """One text of a cell: its kind is of `HEADINGS`, its rank 1, 2, 3 or 0, its mark the sign of a footnote."""

    text: str
    kind: str
    rank: int = 0
    mark: str = ""
    complete: bool = True  # not an entry of ours that lacks runs


class Layout(NamedTuple):
    """A table in entries, before any format."""

    title: str  # with the ids of table and experiment, and how many runs are finished
    facts: list[str]  # ``digits: accuracy, %, higher is better.``
    blocks: list[pd.DataFrame]  # entries by row, and by column and kind: as many columns as fit side by side
    ranked: bool  # whether an entry has a rank
    notes: list[str]


def lay_out(table: ResultTable, partial: bool = False) -> Layout:
    """Return the entries of a table; with `partial` means of the finished runs where some are missing."""
    sides = [cell.printed for *_, cell in table.places() if cell.printed]
    quoted = dict.fromkeys(side.quoted for side in sides if side.quoted)
    marks = dict(zip(quoted, string.ascii_lowercase, strict=False))
    entries: dict[tuple[str, str], dict[str, Entry]] = {}
    for column in table.columns:
        printed = not table.sample and any(cells[column].printed for cells in table.rows.values())
        kinds = ("ours",) if table.sample else ("ours", "paper", "difference", "n") if printed else ("ours", "n")
        our_rank, paper_rank = column_ranks(table, column)
        entries |= {(column, kind): {} for kind in kinds}
        for row, cells in table.rows.items():
            cell, decimals = cells[column], shown_decimals(table, row, column)
            count = DASH if cell.ours is None or cell.ours.text else f"{cell.ours.n}"
            paper_count = DASH if cell.printed is None else "?" if cell.printed.n is None else cell.printed.n
            difference = cell.difference(partial)
            paper, mark = (cell.printed.text, marks.get(cell.printed.quoted, "")) if cell.printed else (DASH, "")
            texts = {
                "ours": our_entry(cell.ours, decimals, partial, table.sample, our_rank.get(row, 0)),
                "paper": Entry(paper, "paper", paper_rank.get(row, 0), mark),
                "difference": Entry(difference_text(difference, decimals) if difference else DASH, "difference"),
                "n": Entry(f"{count} / {paper_count}" if printed else count, "n"),
            }
            for kind in kinds:
                entries[column, kind][row] = texts[kind]
    facts: dict[str, list[str]] = {}
    for column, column_facts in table.columns.items():
        better = f"{column_facts['better']} is better" if column_facts.get("better") else ""
        parts = filter(None, (column_facts.get("metric"), column_facts.get("unit"), better))
        facts.setdefault(", ".join(parts), []).append(column)
    names = {}
    if len(set(table.settings.values())) > 1:  # else the notes say it
        names["", "settings"] = {row: Entry(setting, "settings") for row, setting in table.settings.items()}
    notes = [f"[{mark}] quoted by the paper from {source}" for source, mark in marks.items()]
    return Layout(
        title=f"{'SAMPLE, no results: ' if table.sample else ''}{table.title} ({_identity(table)})",
        facts=[f"{', '.join(columns)}: {text}." for text, columns in facts.items() if text],
        blocks=list(_blocks(names, entries, list(table.rows))),
        ranked=any(entry.rank for kind_entries in entries.values() for entry in kind_entries.values()),
        notes=[*notes, *table_notes(table, partial)],
    )


def _identity(table: ResultTable) -> str:
    """Return ``kmip-paper/table2, K-5.2, 143 of 144 runs``; a command that fills the table is one run."""
    sides = [cell.ours for *_, cell in table.places() if cell.ours]
    statuses = [
        status for side in sides if not side.published for status in (*side.sources.values(), *side.unfinished.values())
    ]
    states = {status.path: status.state for status in statuses}
    done = sum(state is State.DONE for state in states.values())
    runs = [f"{done} of {len(states)} run{'s' * (len(states) > 1)}"] if states else []
    return ", ".join([*dict.fromkeys([table.id, table.experiment]), *runs])


def _blocks(
    names: Mapping[tuple[str, str], Any], entries: Mapping[tuple[str, str], Any], rows: list[str]
) -> Iterator[pd.DataFrame]:
    """Yield the columns in groups that fit side by side as Markdown, as far as one column allows, names in each."""
    strips = _markdown_strips(pd.DataFrame({**names, **entries}, index=rows, dtype=object))
    widths = [3 + max(map(len, strip)) for strip in strips]
    space = WIDTH - sum(widths[: 1 + len(names)])
    sizes: dict[str, int] = {}
    for (column, _), width in zip(entries, widths[1 + len(names) :], strict=True):
        sizes[column] = sizes.get(column, 0) + width
    groups: list[list[str]] = [[]]
    for column, size in sizes.items():
        if groups[-1] and sum(sizes[name] for name in groups[-1]) + size > space:
            groups.append([])
        groups[-1].append(column)
    for group in groups:
        part = {key: texts for key, texts in entries.items() if key[0] in group}
        yield pd.DataFrame({**names, **part}, index=rows, dtype=object)


def our_entry(ours: Ours | None, decimals: int, partial: bool, sample: bool, rank: int) -> Entry:
    """Return our mean; or, where runs are missing and `partial` does not ask for it, how many are finished."""
    if ours is None:
        return Entry(DASH, "ours")
    lacks = not ours.complete and not ours.text
    # the state of the one command that fills the cell, or the number of runs
    states = [str(status.state) for key, status in ours.unfinished.items() if isinstance(key, str)]
    progress = states[0] if states else f"{ours.n} of {ours.planned}"
    parts = [ours.text] if ours.text else []
    if ours.shown(partial):
        parts.append(number(ours.mean, ours.std, decimals, ours.values) + (f" ({progress})" if lacks else ""))
    elif lacks:
        parts.append(progress)
    for state in (State.FAILED, State.DIVERGED, State.STALE, State.INTERRUPTED):  # which ones, the notes say
        count = sum(status.state is state and isinstance(key, int) for key, status in ours.unfinished.items())
        parts += [f"{count} {state}"] if count else []
    text = f"{'SAMPLE ' if sample else ''}{'; '.join(parts)}"
    return Entry(text, "ours", rank, PUBLISHED if ours.published else "", complete=not lacks)


def number(mean: float, std: float | None, decimals: int, values: tuple[float, ...] = ()) -> str:
    """Return ``mean ± std``; a count that is the same in all runs, such as parameters, has no spread."""
    if std is None or (std == 0 and all(float(value).is_integer() for value in values)):
        return f"{mean:,.{decimals}f}"
    spread = f"{std:,.{decimals}f}"
    # Where the paper prints whole numbers, a small spread would look like none.
    return f"{mean:,.{decimals}f} ± {f'{std:.1g}' if std and not float(spread.replace(',', '')) else spread}"


def shown_decimals(table: ResultTable, row: str, column: str) -> int:
    """Return decimals as printed in the cell, else in the column; else two digits of the smallest spread."""
    cells = [table.rows[row][column], *(cells[column] for cells in table.rows.values())]
    for cell in cells:
        if cell.printed is not None and cell.printed.mean is not None:
            return len(cell.printed.text.split(" ± ")[0].partition(".")[2])
    if cells[0].ours is not None and cells[0].ours.values and not table.columns[column].get("ranked", True):
        cells = cells[:1]  # of sizes from a hundred to millions, each has digits of its own
    sides = [cell.ours for cell in cells if cell.ours is not None and cell.ours.values]
    if all(value.is_integer() for side in sides for value in side.values):
        return 0
    spreads = [side.std for side in sides if side.std and math.isfinite(side.std)]
    largest = max((abs(side.mean) for side in sides if side.mean and math.isfinite(side.mean)), default=1)
    # Four digits of the largest mean, where no spread says what is worth showing.
    digits = 1 - math.floor(math.log10(min(spreads))) if spreads else 3 - math.floor(math.log10(largest))
    return min(max(digits, 0), 6)


def ranks(values: Mapping[str, float | None], better: str | None) -> dict[str, int]:
    """Return the names of the three best values with their ranks, equal values share one (1, 1, 3), NaN has none."""
    scores = pd.Series(values, dtype=float).dropna()
    if better is None or len(scores) < 2:
        return {}
    places = scores.rank(method="min", ascending=better == "lower").astype(int)
    return places[places <= 3].to_dict()  # the papers mark first, second and third


def column_ranks(table: ResultTable, column: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return row -> rank of our complete cells in a column, compared as they are shown, and of the printed ones."""
    facts, cells = table.columns[column], {row: cells[column] for row, cells in table.rows.items()}
    better = facts.get("better") if facts.get("ranked", True) else None
    means = {
        row: round(cell.our_mean, shown_decimals(table, row, column))
        for row, cell in cells.items()
        if cell.ours is not None and cell.ours.complete and not table.sample
    }
    return ranks(means, better), ranks({row: cell.paper_mean for row, cell in cells.items()}, better)


def markdown(table: ResultTable, partial: bool = False) -> str:
    """Return the table in GitHub's Markdown; the rows' names are in each block."""
    layout = lay_out(table, partial)
    lines = [f"### {layout.title}", "", *layout.facts, *([""] if layout.facts else [])]
    for block in layout.blocks:
        strips = []
        for kind, strip in zip(["row", *(kind for _, kind in block.columns)], _markdown_strips(block), strict=True):
            texts = [text.replace("|", "\\|") for text in strip]
            width, left = max(3, *map(len, texts)), kind in ("row", "settings")
            texts.insert(1, f":{'-' * (width - 1)}" if left else f"{'-' * (width - 1)}:")
            strips.append([text.ljust(width) if left else text.rjust(width) for text in texts])
        lines += [*(f"| {' | '.join(row)} |" for row in zip(*strips, strict=True)), ""]
    legend = [LEGEND.format("**best**", "*second*", "third (3rd)")] if layout.ranked else []
    fill = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False).fill
    return "\n".join([*lines, *(fill(f"- {note}") for note in [*legend, *layout.notes])]) + "\n"


def _markdown_strips(block: pd.DataFrame) -> list[list[str]]:
    """Return the texts below each other, the heading first, of the rows' names and of each kind of entry."""
    strips = [["", *block.index]]
    for column, kind in block.columns:
        entries, heading = list(block[column, kind]), HEADINGS[kind]
        if kind == "ours":
            heading = f"{column}: {heading}" if (column, "n") in block.columns else column
        ends = [MARKDOWN_RANKS[entry.rank][1] + (f" [{entry.mark}]" if entry.mark else "") for entry in entries]
        width = max(map(len, ends), default=0)  # padded after the number, so that digits are below digits
        starts = [MARKDOWN_RANKS[entry.rank][0] + entry.text for entry in entries]
        strips.append([heading, *(start + end.ljust(width) for start, end in zip(starts, ends, strict=True))])
    return strips


def latex(table: ResultTable, partial: bool = False) -> str:
    """Return a ``table`` environment, at most as wide as the line, its notes below."""
    layout = lay_out(table, partial)
    legend = [LEGEND.format(r"\textbf{best}", r"\underline{second}", r"\textit{third}")] if layout.ranked else []
    lines = [
        r"% \usepackage{booktabs, adjustbox}",
        r"\begin{table}[p]",
        r"\centering\footnotesize",
        rf"\caption{{{_escape_latex(layout.title)}}}",
    ]
    for block in layout.blocks:
        headed = block.rename(columns=HEADINGS, level=1).rename(index=_escape_latex, columns=_escape_latex)
        alignment = "l" + "".join("l" if kind == "settings" else "r" for _, kind in block.columns)
        tabular = headed.map(_latex_entry).style.to_latex(column_format=alignment, hrules=True, multicol_align="c")
        lines += [r"\begin{adjustbox}{max width=\linewidth}", tabular + r"\end{adjustbox}", r"\par\medskip"]
    lines += [
        r"\begin{minipage}{\linewidth}\scriptsize",
        *(f"{note}\\par" for note in [*legend, *map(_escape_latex, [*layout.facts, *layout.notes])]),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escape_latex(text: str) -> str:
    return text.translate(str.maketrans(ESCAPES))


def _latex_entry(entry: Entry) -> str:
    text = LATEX_RANKS[entry.rank].format(NEGATIVE.sub("$-$", _escape_latex(entry.text)))
    return text + (rf"\textsuperscript{{{_escape_latex(entry.mark)}}}" if entry.mark else "")


def html_text(table: ResultTable, partial: bool = False) -> str:
    """Return ``<table class="results">``, several where it would be wide, comparisons, and ``<ul class="notes">``."""
    layout = lay_out(table, partial)
    title = html.escape(layout.title)
    lines = [f'<p class="title">{title}</p>', *(f'<p class="facts">{html.escape(fact)}</p>' for fact in layout.facts)]
    for number, wide_block in enumerate(layout.blocks):
        # the settings last, so that a narrow screen shows the score next to the name
        block = wide_block[sorted(wide_block.columns, key=lambda column: column[1] == "settings")]
        headed = block.rename(columns=HEADINGS, level=1).rename(index=html.escape, columns=html.escape)
        name = f"{re.sub(r'[^a-zA-Z0-9]', '-', table.id)}-{number}"
        styler = Styler(headed.map(_html_entry), uuid=name, cell_ids=False).set_td_classes(headed.map(_classes))
        attributes = f'class="results" aria-label="{title}"'
        lines += ['<div class="wide">', styler.to_html(table_attributes=attributes), "</div>"]
    for note in (note for note in layout.notes if isinstance(note, Comparison)):
        pairs = pd.DataFrame(note.rows, columns=["", "difference", "95 % interval", "p"]).set_index("")
        pairs.index.name = None
        content = pairs.to_html(classes="results pairs", border=0)
        lines += [f'<p class="facts">{html.escape(note.heading)}</p>', '<div class="wide">', content, "</div>"]
    names = (f'<span class="{name}">{name}</span>' for name in list(HTML_RANKS.values())[1:])
    legend = [LEGEND.format(*names)] if layout.ranked else []
    notes = [*legend, *(html.escape(note) for note in layout.notes if not isinstance(note, Comparison))]
    return "\n".join([*lines, '<ul class="notes">', *(f"<li>{note}</li>" for note in notes), "</ul>"]) + "\n"


def _html_entry(entry: Entry) -> str:
    return html.escape(entry.text) + (f"<sup>{entry.mark}</sup>" if entry.mark else "")


def _classes(entry: Entry) -> str:
    return " ".join(filter(None, (entry.kind, HTML_RANKS[entry.rank], "" if entry.complete else "incomplete")))


def csv_export(table: ResultTable, partial: bool = False) -> str:
    """Return one line for each cell, with every fact in full precision; without `partial` no means of partial cells."""
    lines = [
        {"table": table.id, "row": row, "column": column}
        | _csv_facts(cell, partial)
        | {"settings": table.settings[row], "sample": table.sample}
        for row, column, cell in table.places()
    ]
    columns = ["table", "row", "column", *_csv_facts(Cell(), partial), "settings", "sample"]
    return pd.DataFrame(lines, columns=columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _csv_facts(cell: Cell, partial: bool) -> Mapping[str, Any]:
    ours, printed = cell.ours or Ours(), cell.printed
    shown, difference = ours.shown(partial), cell.difference(partial)
    facts = {
        "ours_text": ours.text,
        "ours_mean": ours.mean if shown else None,
        "ours_std": ours.std if shown else None,
        "ours_n": ours.n,
        "wanted": ours.planned,
    }
    for state in (state for state in State if state is not State.DONE):
        facts[str(state)] = " ".join(str(key) for key, status in ours.unfinished.items() if status.state is state)
    facts |= {"published": ours.published, "seeds": " ".join(map(str, ours.seeds))}
    facts["values"] = " ".join(map(repr, ours.values))
    facts |= {f"paper_{name}": getattr(printed, name, None) for name in ("text", "mean", "std", "n")}
    facts["quoted"] = getattr(printed, "quoted", None)
    names = {"value": "difference", "low": "low", "high": "high", "df": "df", "reason": "no_interval"}
    facts |= {name: getattr(difference, field, None) for field, name in names.items()}
    return {name: "nan" if value != value else value for name, value in facts.items()}  # not empty, as unknown ones are


# name -> format(table, partial=False): with `partial`, cells that lack runs show the mean of those that are finished.
FORMATS: dict[str, Callable[..., str]] = {"md": markdown, "tex": latex, "csv": csv_export, "html": html_text}
