"""Provenance of a result table: config, code version, hardware and date behind each number, failures, and the notes.

The notes are the sentences below a table: how to read it, what failed and why, and what it was measured on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.durations import duration
from graphgps_kmip.experiments.run_status import State, Status, read_failure
from graphgps_kmip.report.claims import claim_notes
from graphgps_kmip.report.result_table import Cell, ResultTable
from graphgps_kmip.report.significance import significance_notes
from graphgps_kmip.report.tuning import tuning_notes


@dataclass(frozen=True)
class Origin:
    """One run or command behind a cell, or several cells of a row."""

    row: str
    columns: tuple[str, ...]
    run: str
    value: str
    config_hash: str
    code_version: str
    hardware: str
    date: str
    minutes: str
    folder: str


def origins(table: ResultTable) -> list[Origin]:
    """Return the origin of every value in a table, row by row, once for a command that fills many cells of a row."""
    merged: dict[tuple[str, str, str], Origin] = {}
    for origin in _origins(table):
        key = (origin.row, origin.run, origin.folder)
        if key in merged and not origin.value:
            origin = Origin(**{**vars(origin), "columns": (*merged[key].columns, *origin.columns)})
        elif key in merged:
            key = (*key[:2], f"{origin.folder} {origin.columns}")
        merged[key] = origin
    return list(merged.values())


def _origins(table: ResultTable) -> Iterator[Origin]:
    for row, cells in table.rows.items():
        for column, cell in cells.items():
            if cell.ours is None or not cell.ours.values:
                continue
            by_seed = dict(zip(cell.ours.seeds, cell.ours.values, strict=True)) if cell.ours.seeds else {}
            for source, status in cell.ours.sources.items():
                if by_seed and source not in by_seed:
                    continue
                value = f"{by_seed[source]:.6g}" if by_seed else ""
                yield _origin(row, column, f"seed {source}" if by_seed else str(source), value, status)


def _origin(row: str, column: str, run: str, value: str, status: Status) -> Origin:
    record = status.record
    seconds = seconds_of(record)
    return Origin(
        row=row,
        columns=(column,),
        run=run,
        value=value,
        config_hash=_short(record.get("config_hash", "")),
        code_version=str(record.get("code_version", "?")),
        hardware=hardware_in_words(record.get("hardware", {})),
        date=str(record.get("finished_at", "?"))[:16].replace("T", " "),
        minutes="?" if seconds is None else f"{seconds / 60:.1f}",
        folder=str(status.path),
    )


def _short(config_hash: str) -> str:
    return config_hash if len(config_hash) <= 12 else ""  # of a command it is its text, which is shown elsewhere


def seconds_of(record: dict[str, Any]) -> float | None:
    """Return how long a run or command took; None where its record does not say."""
    return record.get("wall_time", record.get("seconds"))


def hardware_in_words(facts: dict[str, Any]) -> str:
    """Return what a run ran on, in a few words."""
    if not facts:
        return "?"
    return str(facts.get("gpu") or f"{facts.get('cpu', 'CPU')}, {facts.get('cores', '?')} cores")


Place = tuple[str, str, Cell]  # row, column and the cell

PUBLISHED = "†"  # behind numbers of published runs
SPREAD = "ours: mean ± sample standard deviation (n - 1) over n runs"
OTHER_SPREAD = "the papers do not say which kind theirs is"
DIFFERENCE = "difference: ours - paper, with Welch's 95 % interval; n: ours / paper"
SETTINGS = {
    "exact": "exact: the paper's settings are known to the last",
    "ours": "ours: some settings are not printed, and chosen by us",
    "none": "none: no number is printed",
    "quoted": "quoted: the paper's number alone, nothing runs here",
}


def notes(table: ResultTable, partial: bool) -> Iterator[str]:
    """Yield the notes of a table, written with or without `partial` means."""
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
    published = dict.fromkeys(row for row, _, cell in places if cell.ours and cell.ours.published)
    if published:
        yield f"{PUBLISHED}: published runs (run/experiments/published), not made here: {', '.join(published)}."
    yield from tuning_notes(table.searches)
    yield from significance_notes(table)
    yield from claim_notes(table, partial)
    if alone := dict.fromkeys(row for row, _, cell in places if cell.ours and cell.ours.alone):
        yield f"seconds and memory of one run that had the machine to itself (`run --timing`): {', '.join(alone)}."
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


@dataclass(frozen=True)
class Failure:
    """One run or command that failed: its folder below the root of the results, how, why, and where its output is."""

    run: str
    state: str
    error: str
    log: str


def failures(found: Iterable[Status], out: Path) -> list[Failure]:
    """Return what failed or diverged."""
    return [
        Failure(str(one.path.relative_to(out)), one.state, one.error or "no reason was written", _log(one.path))
        for one in found
        if one.state in (State.FAILED, State.DIVERGED)
    ]


def total_time(found: Iterable[Status]) -> str:
    """Return how long the finished ones took together, such as ``3 h 30 min``; empty if none is finished."""
    records = [status.record for status in found if status.state is State.DONE]
    return duration(sum(seconds_of(record) or 0.0 for record in records)) if records else ""


def _log(path: Path) -> str:
    return str(read_failure(path).get("log", ""))
