"""Experiments and plans as text."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from graphgps_kmip.experiments.extent import Extent
from graphgps_kmip.experiments.jobs import Job
from graphgps_kmip.experiments.process import is_running
from graphgps_kmip.experiments.records import Experiment
from graphgps_kmip.experiments.schedule import Outcome, Result
from graphgps_kmip.experiments.state import State

HEAD = ("id", "done", "sample", "hours", "memory", "card", "what it is, and what it makes")
NARROWEST = 30  # columns that the last column has in any case


def experiment_table(experiments: Iterable[Experiment], extent_of: Callable[[Experiment], Extent], width: int) -> str:
    """Return a table with a row for each experiment: how much is done, what it costs, and what it is.

    ``done`` and ``sample`` count runs and commands, ``done`` of all that are needed; hours are those of all runs.
    """
    rows = [(*HEAD[:-1], HEAD[-1])]
    for one in experiments:
        reached = extent_of(one)
        done = f"{reached.done}/{reached.needed}" + (f" ({reached.failed} failed)" if reached.failed else "")
        memory = f"{one.cost['memory_gb']:g} GB" if "memory_gb" in one.cost else "?"
        hours = f"{one.cost['hours']:g}" if "hours" in one.cost else "?"
        what = one.title + (f" -> {', '.join(one.makes)}" if one.makes else "")
        rows.append((one.id, done, f"{reached.sampled}", hours, memory, str(one.cost.get("card", "?")), what))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        cells = (f"{cell:<{size}}" for cell, size in zip(row[:-1], widths, strict=True))
        wrapped = textwrap.wrap(row[-1], max(NARROWEST, width - indent))
        lines += ["  ".join([*cells, wrapped[0]]), *(" " * indent + line for line in wrapped[1:])]
    return "\n".join(lines)


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Return the command of each job, to be copied into a shell in the project's root, with how far it is."""
    return [f"{command_line(job)}  # {_state(job)}" for job in jobs]


def command_line(job: Job) -> str:
    """Return what a job runs, as one types it."""
    return shlex.join(["python", *job.words])


def state_counts(jobs: Sequence[Job]) -> str:
    """Return how many jobs are how far: ``3 done, 33 missing``."""
    counts = Counter(job.status().state for job in jobs)
    return ", ".join(f"{counts[state]} {state}" for state in State if counts[state]) or "nothing"


def summary(results: Sequence[Result]) -> str:
    """Return what became of the jobs: a line for each that is not done, and how many are."""
    rest = [one for one in results if one.outcome is not Outcome.DONE]
    lines = [f"{one.outcome:<8}{one.job.label}{f': {one.why}' if one.why else ''}" for one in rest]
    return "\n".join([*lines, f"{len(results) - len(rest)} of {len(results)} jobs are done"])


def _state(job: Job) -> str:
    status = job.status()
    running = status.state is not State.DONE and is_running(job)
    return f"{status.state}{', running' if running else ''}{f': {status.error}' if status.error else ''}"
