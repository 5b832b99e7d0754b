"""How long jobs will take, from those that are done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from graphgps_kmip.experiments.jobs import Job
from graphgps_kmip.experiments.process import Running


class Durations:
    """Seconds of finished jobs, by group."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def add(self, group: str, record: Mapping[str, Any]) -> None:
        """Take note of a finished job by its record."""
        seconds = record.get("wall_time", record.get("seconds"))
        if seconds is not None:
            self.seconds.setdefault(group, []).append(seconds)

    def expected(self, job: Job) -> float | None:
        """Return the mean of its group, else of all; None while nothing is done."""
        known = self.seconds.get(job.group) or [one for group in self.seconds.values() for one in group]
        return fmean(known) if known else None

    def left(self, running: Running) -> float | None:
        """Return what is left of a running job; None while nothing is done."""
        expected = self.expected(running.job)
        return None if expected is None else max(0.0, expected - running.seconds)


def to_go(running: Sequence[float | None], waiting: Sequence[float | None], parallel: int) -> float | None:
    """Return the seconds until all jobs are done, if slots are always full; None if too little is known.

    Where the time of a waiting job is not known, it is taken to be that of the running ones.
    """
    known = [one for one in running if one is not None]
    if not known:
        return None
    guess = fmean(known)
    total = sum(guess if one is None else one for one in (*running, *waiting))
    return max(max(known), total / parallel)
