"""A table of results: our runs beside the printed numbers. Built by `build.py`, written by `formats.py`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphgps_kmip.experiments.printed import PrintedCell
from graphgps_kmip.experiments.state import Status
from graphgps_kmip.report.welch import Difference, welch


@dataclass(frozen=True)
class Ours:
    """Our side of a cell.

    Args:
        values: of the finished runs, in the unit of the column.
        seeds: of the finished runs, one for each value; empty for the values of a command.
        wanted: how many runs the experiment asks for.
        unfinished: seed (or the command's name) -> how far it is, of the others.
        sources: seed (or the command's name) -> status of what was read, for provenance.
        text: what a command says in place of numbers, such as ``OOM``.
    """

    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    wanted: int = 0
    unfinished: Mapping[Any, Status] = field(default_factory=dict)
    sources: Mapping[Any, Status] = field(default_factory=dict)
    text: str = ""

    @property
    def n(self) -> int:
        """Number of finished runs."""
        return len(self.values)

    @property
    def complete(self) -> bool:
        """Whether every run that is wanted is finished."""
        return 0 < self.n == self.wanted

    @property
    def mean(self) -> float | None:
        """Mean over the finished runs; None without one."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation, sum of squares over n - 1; None below two runs, NaN where a value is."""
        if self.n < 2:
            return None
        return statistics.stdev(self.values) if all(map(math.isfinite, self.values)) else math.nan

    def shown(self, partial: bool) -> bool:
        """Whether a table shows a mean: of all runs, or with `partial` of those that are finished."""
        return self.complete or (partial and bool(self.values))


@dataclass(frozen=True)
class Cell:
    """One cell: ours, and what the paper prints; None where there is none of it."""

    ours: Ours | None = None
    printed: PrintedCell | None = None

    def difference(self, partial: bool) -> Difference | None:
        """Return ours - printed where both are numbers, and ours is shown."""
        if self.ours is None or self.printed is None or self.printed.mean is None or not self.ours.shown(partial):
            return None
        return welch(self.ours, self.printed)


@dataclass(frozen=True)
class ResultTable:
    """One table of results.

    Args:
        id: ``<paper>/<table>``, or that of a table of our own.
        title: one line.
        experiment: id of the experiment.
        columns: name -> ``metric``, ``better`` (``higher``, ``lower`` or None), ``unit``.
        rows: row -> column -> cell, every row with every column.
        settings: row -> ``exact``, ``ours`` or ``none`` (see `Experiment`).
        sample: made of runs on sample data, which are no results; printed numbers do not stand beside.
        printed_hardware: what the paper used.
        notes: of the printed table and the experiment.
    """

    id: str
    title: str
    experiment: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str]
    sample: bool = False
    printed_hardware: str = ""
    notes: tuple[str, ...] = ()
