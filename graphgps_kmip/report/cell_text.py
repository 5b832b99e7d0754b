"""One entry of a table in words: our mean or how far it is, the printed number, the difference, the counts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphgps_kmip.experiments.printed import PrintedCell
from graphgps_kmip.experiments.state import State
from graphgps_kmip.report.provenance import hardware_in_words
from graphgps_kmip.report.result_table import Cell, Ours, ResultTable
from graphgps_kmip.report.welch import Difference

DASH = "-"


@dataclass(frozen=True)
class Text:
    """One entry.

    Args:
        text: what stands there.
        kind: ``ours``, ``paper``, ``difference`` or ``n``.
        rank: 1, 2, 3 in its column, else 0.
        mark: letter of a footnote.
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
    return Text(f"SAMPLE {text}" if sample else text, "ours", rank, title=_source(ours), complete=not lacks)


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
    """Return ``mean ± std``; a count that is the same in all runs, such as parameters, stands alone."""
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
