"""Listings of experiments, plans and results of jobs as text and Markdown tables."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from graphgps_kmip.common.project import train_command
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.job_process import is_running
from graphgps_kmip.experiments.job_runner import Outcome, Result, shortened
from graphgps_kmip.experiments.jobs import Job
from graphgps_kmip.experiments.run_status import Extent, State

HEAD = ("id", "done", "sample", "hours", "memory", "card", "what it is, and what it makes")
BELOW = (
    "done, sample: finished runs and commands, on real and on sample data; hours: of all that are needed, one at a "
    "time; as ID: the same runs as that experiment"
)
NARROWEST = 30  # columns that the last column has in any case


def experiment_table(experiments: Iterable[Experiment], extent_of: Callable[[Experiment], Extent], width: int) -> str:
    """Return a table with a row for each experiment: how much is done, what it costs, and what it is."""
    rows = [HEAD]
    for one, hours in _with_hours(experiments):
        reached = extent_of(one)
        done = f"{reached.done}/{reached.needed}" + (f" ({reached.failed} failed)" if reached.failed else "")
        rows.append((one.id, done, f"{reached.sampled}", hours, _memory(one), _card(one), _what(one)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        cells = (f"{cell:<{size}}" for cell, size in zip(row[:-1], widths, strict=True))
        wrapped = textwrap.wrap(row[-1], max(NARROWEST, width - indent))
        lines += ["  ".join([*cells, wrapped[0]]), *(" " * indent + line for line in wrapped[1:])]
    return "\n".join([*lines, "", *textwrap.wrap(BELOW, width)])


def experiment_markdown(experiments: Iterable[Experiment]) -> str:
    """Return the same as a table in Markdown, without what is done: it is the same on every machine."""
    rows = [("experiment", "what it is, and what it makes", "runs", "hours", "card", "memory"), ("---",) * 6]
    for one, hours in _with_hours(experiments):
        runs, commands = sum(len(training.seeds) for training in one.trainings), len(one.commands)
        counts = [f"{runs}"] * bool(runs) + [f"{commands} command{'s' * (commands > 1)}"] * bool(commands)
        rows.append((f"`{one.id}`", _what(one), " and ".join(counts), hours, _card(one), _memory(one)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _with_hours(experiments: Iterable[Experiment]) -> Iterator[tuple[Experiment, str]]:
    """Yield the experiments by number, ours first, and their hours; where an earlier one runs all the same, its id."""
    earlier: dict[str, set[tuple[str, object]]] = {}
    for one in sorted(experiments, key=lambda one: (one.number, one.id)):
        jobs = {(training.folder, seed) for training in one.trainings for seed in training.seeds}
        jobs |= {(command.of or one.id, command.name) for command in one.commands.values()}
        same = next((key for key, theirs in earlier.items() if jobs <= theirs), None)
        if not one.of:  # those that it is made of say what they cost
            earlier[one.id] = jobs
        yield one, f"as {same}" if same else f"{one.cost['hours']:g}" if "hours" in one.cost else "?"


def _memory(experiment: Experiment) -> str:
    return f"{experiment.cost['memory_gb']:g} GB" if "memory_gb" in experiment.cost else "?"


def _card(experiment: Experiment) -> str:
    return str(experiment.cost.get("card", "?"))


def _what(experiment: Experiment) -> str:
    return experiment.title + (f" -> {', '.join(experiment.makes)}" if experiment.makes else "")


def plan_summary(keys: Sequence[str], jobs: Sequence[Job]) -> str:
    """Return the number of jobs of some experiments by state: ``T-6.1: 36 jobs: 3 done, 33 missing``."""
    counts = Counter(job.status().state for job in jobs)
    states = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    return f"{' '.join(keys)}: {len(jobs)} job{'s' * (len(jobs) != 1)}{f': {states}' if states else ''}"


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Return the command of each job, to be copied into a shell in the same folder, and its run status."""
    return [f"{command_line(job)}  # {_state(job)}" for job in jobs]


def command_line(job: Job) -> str:
    """Return what a job runs, as one types it."""
    if job.words[:2] == ("-m", "graphgps_kmip"):  # not from a checkout's root
        return f"{train_command()} {shlex.join(job.words[2:])}"
    return shlex.join(["python", *job.words])


def summary(results: Sequence[Result]) -> str:
    """Return a line for each job that could not be done, and how many are done or stopped."""
    counts = Counter(one.outcome for one in results)
    lines = []
    for one in results:
        if one.outcome not in (Outcome.DONE, Outcome.STOPPED):
            log = f"; log: {shortened(one.job.log)}" if one.outcome is Outcome.FAILED else ""
            lines.append(f"{one.outcome:<8}{one.job.label}: {one.why}{log}")
    stopped = f", {counts[Outcome.STOPPED]} stopped" if counts[Outcome.STOPPED] else ""
    return "\n".join([*lines, f"{counts[Outcome.DONE]} of {len(results)} jobs are done{stopped}"])


def _state(job: Job) -> str:
    status = job.status()
    running = status.state is not State.DONE and is_running(job)
    return f"{status.state}{', running' if running else ''}{f': {status.error}' if status.error else ''}"
