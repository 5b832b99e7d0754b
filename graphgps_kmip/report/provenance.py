"""Where each number of a table comes from: config, code, machine and date of every run behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphgps_kmip.experiments.state import Status
from graphgps_kmip.report.result_table import ResultTable


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
    """Return the origin of every value in a table, row by row; a command that fills many cells of a row stands once."""
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
    return config_hash if len(config_hash) <= 12 else ""  # of a command it is its text, which stands elsewhere


def seconds_of(record: dict[str, Any]) -> float | None:
    """Return how long a run or command took; None where its record does not say."""
    return record.get("wall_time", record.get("seconds"))


def hardware_in_words(facts: dict[str, Any]) -> str:
    """Return what a run ran on, in a few words."""
    if not facts:
        return "?"
    return str(facts.get("gpu") or f"{facts.get('cpu', 'CPU')}, {facts.get('cores', '?')} cores")
