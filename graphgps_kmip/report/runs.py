"""Which runs and commands failed and why, and how long the finished ones took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from graphgps_kmip.experiments.state import State, Status, read_failure
from graphgps_kmip.report.provenance import seconds_of


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


def duration(found: Iterable[Status]) -> str:
    """Return how long the finished ones took together, such as ``3.5 h``; empty if none is finished."""
    records = [status.record for status in found if status.state is State.DONE]
    seconds = sum(seconds_of(record) or 0.0 for record in records)
    if not records:
        return ""
    return f"{seconds / 3600:,.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


def _log(path: Path) -> str:
    return str(read_failure(path).get("log", ""))
