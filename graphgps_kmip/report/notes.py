"""The sentences below a table: how to read it, what failed and why, and what it was made on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from graphgps_kmip.experiments.state import State
from graphgps_kmip.report.provenance import hardware_in_words
from graphgps_kmip.report.result_table import Cell, ResultTable

Place = tuple[str, str, Cell]  # row, column and what stands there

SPREAD = "ours: mean ± sample standard deviation (n - 1) over n runs"
OTHER_SPREAD = "the papers do not say which kind theirs is"
DIFFERENCE = "difference: ours - paper, with Welch's 95 % interval; n: ours / paper"
SETTINGS = {
    "exact": "exact: the paper's settings are known to the last",
    "ours": "ours: some settings are not printed, and chosen by us",
    "none": "none: no number is printed",
}


def notes(table: ResultTable, partial: bool) -> Iterator[str]:
    """Yield the notes of a table, whose entries are written with or without `partial` means."""
    places = [(row, column, cell) for row, cells in table.rows.items() for column, cell in cells.items()]
    printed = [cell.printed for *_, cell in places if cell.printed]
    if not places:
        yield f"Nothing to show yet: {table.experiment} has not run."
    yield f"{SPREAD}; {OTHER_SPREAD}." if any(one.std is not None for one in printed) else f"{SPREAD}."
    if printed:
        yield f"{DIFFERENCE}."
        yield from _without_interval(places, partial)
    used = set(table.settings.values())
    if printed or used - {"none"}:
        yield f"settings {'; '.join(text for name, text in SETTINGS.items() if name in used)}."
    yield from _failures(places)
    machines = _machines(places)
    if machines:
        yield f"our hardware: {'; '.join(machines)}."
    if table.printed_hardware:
        yield f"the paper's hardware: {table.printed_hardware}."
    yield from table.notes


def _without_interval(places: list[Place], partial: bool) -> Iterator[str]:
    """Yield why some differences have no interval, with the number of cells of each reason."""
    found = [cell.difference(partial) for *_, cell in places]
    reasons = Counter(one.reason for one in found if one is not None and one.reason)
    if reasons:
        words = "; ".join(f"{reason}, {count} cell{'s' * (count > 1)}" for reason, count in reasons.items())
        yield f"[-]: no interval can be given ({words})."


def _failures(places: list[Place]) -> Iterator[str]:
    """Yield ``GCN, digits, seed 1; GAT, digits, seed 2 failed: why``, each run once, and each reason once."""
    failed: dict[tuple[str, str], dict[Path, str]] = {}
    for row, column, cell in places:
        for key, status in cell.ours.unfinished.items() if cell.ours else ():
            if status.state in (State.FAILED, State.DIVERGED):
                name = f"{row}, {column}, seed {key}" if isinstance(key, int) else f"command {key}"
                failed.setdefault((status.state, status.error or "no reason was written"), {}).setdefault(
                    status.path, name
                )
    yield from (f"{'; '.join(names.values())} {state}: {error}" for (state, error), names in failed.items())


def _machines(places: list[Place]) -> list[str]:
    records = [status.record for *_, cell in places if cell.ours for status in cell.ours.sources.values()]
    return sorted({hardware_in_words(record.get("hardware", {})) for record in records} - {"?"})
