"""The sentences below a table: how to read it, what failed and why, and what it was made on."""

from __future__ import annotations

from collections.abc import Iterator

from graphgps_kmip.experiments.state import State
from graphgps_kmip.report.provenance import hardware_in_words
from graphgps_kmip.report.result_table import Cell, ResultTable

SPREAD = "ours: mean ± sample standard deviation (n - 1) over n runs"
BESIDE = (
    "; the papers do not say which kind theirs is.",
    "difference: ours - paper, with Welch's 95 % interval; [-]: none, as a side has one run, no spread or no known n. "
    "n: ours / paper.",
)
SETTINGS = {
    "exact": "exact: the paper's settings are known to the last",
    "ours": "ours: some settings are not printed, and chosen by us",
    "none": "none: no number is printed",
}


def notes(table: ResultTable) -> Iterator[str]:
    """Yield the notes of a table."""
    cells = [(row, column, cell) for row, cells in table.rows.items() for column, cell in cells.items()]
    if not cells:
        yield f"Nothing to show yet: {table.experiment} has not run."
    if any(cell.printed for _, _, cell in cells):
        yield SPREAD + BESIDE[0]
        yield BESIDE[1]
    else:
        yield f"{SPREAD}."
    used = set(table.settings.values())
    yield f"settings {'; '.join(text for name, text in SETTINGS.items() if name in used)}."
    for row, column, cell in cells:
        yield from (f"{row}, {column}, {text}" for text in _failures(cell))
    machines = _machines(cells)
    if machines:
        yield f"our hardware: {'; '.join(machines)}."
    if table.printed_hardware:
        yield f"the paper's hardware: {table.printed_hardware}."
    yield from table.notes


def _failures(cell: Cell) -> Iterator[str]:
    """Yield ``seed 1, seed 2 failed: why``, once for each reason."""
    failed: dict[tuple[str, str], list[str]] = {}
    for key, status in cell.ours.unfinished.items() if cell.ours else ():
        if status.state in (State.FAILED, State.DIVERGED):
            name = f"seed {key}" if isinstance(key, int) else f"command {key}"
            failed.setdefault((status.state, status.error or "no reason was written"), []).append(name)
    yield from (f"{', '.join(names)} {state}: {error}" for (state, error), names in failed.items())


def _machines(cells: list[tuple[str, str, Cell]]) -> list[str]:
    records = [status.record for *_, cell in cells if cell.ours for status in cell.ours.sources.values()]
    return sorted({hardware_in_words(record.get("hardware", {})) for record in records} - {"?"})
