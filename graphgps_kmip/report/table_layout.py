"""Layout of a result table, before any format: the text of each cell, ranks of a column, blocks, and notes.

A cell has four entries: our mean (or the progress of its runs), the printed number, the difference with its interval,
and the counts. First, second and third of a column are ranked among our complete cells and, apart, among the printed.
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphgps_kmip.experiments.printed_tables import PrintedCell
from graphgps_kmip.experiments.run_status import State
from graphgps_kmip.report.provenance import PUBLISHED, hardware_in_words, notes
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.welch import Difference

DASH = "-"


@dataclass(frozen=True)
class Text:
    """One entry.

    Args:
        text: as it is shown.
        kind: ``ours``, ``paper``, ``difference`` or ``n``.
        rank: 1, 2, 3 in its column, else 0.
        mark: letter or sign of a footnote.
        title: where it comes from, in a line.
        complete: not an entry of ours that lacks runs.
    """

    text: str
    kind: str
    rank: int = 0
    mark: str = ""
    title: str = ""
    complete: bool = True


def our_text(ours: Ours | None, decimals: int, partial: bool, sample: bool, rank: int) -> Text:
    """Return our mean; or, where runs are missing and `partial` does not ask for it, how many are finished."""
    if ours is None:
        return Text(DASH, "ours")
    lacks = not ours.complete and not ours.text
    parts = [ours.text] if ours.text else []
    if ours.shown(partial):
        parts.append(number(ours.mean, ours.std, decimals, ours.values) + (f" ({_progress(ours)})" if lacks else ""))
    elif lacks:
        parts.append(_progress(ours))
    text = "; ".join([*parts, *_unfinished(ours)])
    mark = PUBLISHED if ours.published else ""
    return Text(f"SAMPLE {text}" if sample else text, "ours", rank, mark, _source(ours), complete=not lacks)


def _progress(ours: Ours) -> str:
    """Return ``3 of 5`` runs, or the state of the one command that fills the cell."""
    states = [str(status.state) for key, status in ours.unfinished.items() if isinstance(key, str)]
    return states[0] if states else f"{ours.n} of {ours.wanted}"


def _unfinished(ours: Ours) -> Iterator[str]:
    """Yield ``1 failed`` for each state of seeds but missing; which ones, the notes say."""
    for state in (State.FAILED, State.DIVERGED, State.STALE, State.INTERRUPTED):
        count = sum(one.state is state and isinstance(key, int) for key, one in ours.unfinished.items())
        if count:
            yield f"{count} {state}"


def number(mean: float, std: float | None, decimals: int, values: tuple[float, ...] = ()) -> str:
    """Return ``mean ± std``; a count that is the same in all runs, such as parameters, has no spread."""
    if std is None or (std == 0 and all(float(value).is_integer() for value in values)):
        return f"{mean:.{decimals}f}"
    spread = f"{std:.{decimals}f}"
    # Where the paper prints whole numbers, a small spread would look like none.
    return f"{mean:.{decimals}f} ± {f'{std:.1g}' if std and not float(spread) else spread}"


def paper_text(printed: PrintedCell | None, marks: Mapping[str, str], rank: int) -> Text:
    """Return the printed text with the mark of whom it quotes."""
    if printed is None:
        return Text(DASH, "paper")
    title = f"quoted from {printed.quoted}" if printed.quoted else ""
    return Text(printed.text, "paper", rank, marks.get(printed.quoted, ""), title)


def difference_text(found: Difference | None, decimals: int) -> Text:
    """Return ``+0.11 [-0.30, +0.52]``, or ``+0.11 [-]`` without an interval."""
    if found is None:
        return Text(DASH, "difference")
    value, low, high = (
        None if one is None else f"{one:+z.{decimals}f}" for one in (found.value, found.low, found.high)
    )
    title = f"no interval: {found.reason}" if found.reason else f"{found.df:.1f} degrees of freedom"
    return Text(f"{value} [{DASH if low is None else f'{low}, {high}'}]", "difference", title=title)


def counts_text(cell: Cell, with_paper: bool) -> str:
    """Return ``ours / paper``: finished runs, and those that the paper says it made."""
    ours = DASH if cell.ours is None or cell.ours.text else str(cell.ours.n)
    if not with_paper:
        return ours
    return f"{ours} / {DASH if cell.printed is None else '?' if cell.printed.n is None else cell.printed.n}"


def shown_decimals(table: ResultTable, row: str, column: str) -> int:
    """Return decimals as printed in the cell, else in the column; else two digits of the smallest spread."""
    own = table.rows[row][column]
    cells = [own, *(cells[column] for cells in table.rows.values())]
    for cell in cells:
        if cell.printed is not None and cell.printed.mean is not None:
            return len(cell.printed.text.split(" ± ")[0].partition(".")[2])
    if own.ours is not None and own.ours.values and not table.columns[column].get("ranked", True):
        cells = [own]  # of sizes from a hundred to millions, each has digits of its own
    ours = [cell.ours for cell in cells if cell.ours is not None and cell.ours.values]
    if all(value.is_integer() for one in ours for value in one.values):
        return 0
    spreads = [one.std for one in ours if one.std and math.isfinite(one.std)]
    # Four digits of the largest mean, where no spread says what is worth showing.
    digits = 1 - math.floor(math.log10(min(spreads))) if spreads else 3 - _exponent(ours)
    return min(max(digits, 0), 6)


def _exponent(ours: list[Ours]) -> int:
    largest = max((abs(one.mean) for one in ours if one.mean and math.isfinite(one.mean)), default=1)
    return math.floor(math.log10(largest))


def _source(ours: Ours) -> str:
    """Return folders, code, machines and last date behind a cell."""
    records = [status.record for status in ours.sources.values()]
    if not records:
        return ""
    folders = sorted({str(status.path.parent if ours.seeds else status.path) for status in ours.sources.values()})
    code = sorted({str(record.get("code_version", "?")) for record in records})
    machines = sorted({hardware_in_words(record.get("hardware", {})) for record in records})
    date = max(str(record.get("finished_at", "?"))[:10] for record in records)
    seeds = f", seeds {' '.join(map(str, ours.seeds))}" if ours.seeds else ""
    return f"{', '.join(folders)}{seeds}; code {', '.join(code)}; {', '.join(machines)}; {date}"


PLACES = 3  # the papers mark first, second and third


def ranks(values: Mapping[str, float | None], better: str | None) -> dict[str, int]:
    """Return the names of the three best values with their ranks, 1 the best; better: ``higher``, ``lower``, None.

    Equal values share a rank, and the next is as much higher (1, 1, 3). None and NaN have none; nor have all if no
    direction is better, or if there is nothing to compare with.
    """
    sign = {"higher": -1, "lower": 1, None: 0}[better]
    order = {name: sign * value for name, value in values.items() if value is not None and not math.isnan(value)}
    if not sign or len(order) < 2:
        return {}
    found = {name: 1 + sum(other < value for other in order.values()) for name, value in order.items()}
    return {name: rank for name, rank in found.items() if rank <= PLACES}


def our_ranks(table: ResultTable, column: str) -> dict[str, int]:
    """Return row -> rank of our complete cells in a column, compared as they are shown; samples have none."""
    ours = {row: cells[column].ours for row, cells in table.rows.items()}
    means = {
        row: round(one.mean, shown_decimals(table, row, column))
        for row, one in ours.items()
        if one is not None and one.complete
    }
    return {} if table.sample else ranks(means, _better(table, column))


def printed_ranks(table: ResultTable, column: str) -> dict[str, int]:
    """Return row -> rank of the printed cells in a column."""
    printed = {row: cells[column].printed for row, cells in table.rows.items()}
    return ranks({row: one.mean for row, one in printed.items() if one is not None}, _better(table, column))


def _better(table: ResultTable, column: str) -> str | None:
    facts = table.columns[column]
    # Where the rows are sizes, and no competitors, the column has ``ranked: False``.
    return facts.get("better") if facts.get("ranked", True) else None


HEADINGS = {"ours": "ours", "paper": "paper", "difference": "difference [95 %]", "n": "n"}


@dataclass(frozen=True)
class Layout:
    """The texts of a table.

    Args:
        title: one line, with the ids of table and experiment, and how many runs are finished.
        columns: name -> kinds of its entries.
        facts: column -> ``accuracy, %, higher is better``.
        rows: row -> column -> entries, one for each kind.
        settings: row -> word; empty where all rows have the same, which the notes say.
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
    """Return the texts of a table; with `partial` means of the finished runs where some are missing."""
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
    """Return the column's name with its facts, the heading above all of its entries."""
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
    """Return the columns in groups that fit side by side into a width, as far as one column allows."""
    found: list[list[str]] = [[]]
    for column, size in sizes.items():
        if found[-1] and sum(sizes[one] for one in found[-1]) + size > width:
            found.append([])
        found[-1].append(column)
    return found


def _identity(table: ResultTable) -> str:
    """Return ``kmip-paper/table2, K-5.2, 143 of 144 runs``; a command that fills the table is one run."""
    ours = [cell.ours for cells in table.rows.values() for cell in cells.values() if cell.ours]
    ours = [one for one in ours if not one.published]
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
