"""Job runner: runs jobs in parallel on this machine, each after the jobs that it needs.

Our own: process pools and submitit's local executor know no dependencies, no finished results that are skipped, and no
Ctrl-C after which each job saves and ends.

Progress and ETA are a line for each running job on the terminal, and one for all of them.
"""

from __future__ import annotations

import enum
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

from graphgps_kmip.common.durations import duration
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.experiments.job_process import Running, finish, start, take
from graphgps_kmip.experiments.jobs import Job, with_pending_needs
from graphgps_kmip.experiments.run_status import State

REDRAW = 0.5  # seconds between two drawings on a terminal
REPORT = 60.0  # seconds between two reports elsewhere
LAST_LINES = 4096  # bytes that hold the last line of a stats.json


@dataclass(frozen=True)
class Epochs:
    """Progress of a training: epochs done, all of them, and its own ETA in seconds; 0: overdue."""

    done: int
    of: int
    to_go: float

    @classmethod
    def after(cls, done: int, of: int, eta: float, age: float) -> Epochs:
        """Return the progress of a training whose last epoch ended `age` seconds ago, with ETA `eta` then.

        While an epoch takes longer than the ones before, those after it are still to come.
        """
        left = max(of - done, 1)
        return cls(done, of, max(eta - age, eta * (left - 1) / left, 0.0))


def epochs(running: Running) -> Epochs | None:
    """Return the epochs of a running training, from what it writes; None before its first epoch of this attempt."""
    stats = running.job.path / "train" / "stats.json"
    try:
        age = time.time() - stats.stat().st_mtime
        if running.job.command or age > running.seconds:  # of an earlier attempt
            return None
        with open(stats, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_LINES))
            line = json.loads(file.read().decode().rsplit("\n", 2)[-2])
        found = re.search(r"^ +max_epoch: (\d+)$", (running.job.path / "config.yaml").read_text(), re.M)
        return Epochs.after(line["epoch"] + 1, int(found[1]), line["eta"], age) if found else None
    except (OSError, ValueError, LookupError):  # being written at this moment, or a network of another package
        return None


class Durations:
    """Seconds of finished jobs, by group."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def add(self, group: str, record: Mapping[str, Any], took: float = 0.0) -> None:
        """Add a finished job: by its record, or by what it took here, which begins before its record does."""
        seconds = max(took, record.get("wall_time", record.get("seconds", 0.0)))
        if seconds:
            self.seconds.setdefault(group, []).append(seconds)

    def expected(self, job: Job) -> float | None:
        """Return the mean of its group, else of all; None while nothing is done."""
        known = self.seconds.get(job.group) or [one for group in self.seconds.values() for one in group]
        return fmean(known) if known else None

    def left(self, running: Running) -> float | None:
        """Return what is left of a running job, 0 if it takes longer than expected; None while nothing is done."""
        expected = self.expected(running.job)
        return None if expected is None else max(0.0, expected - running.seconds)


def to_go(
    running: Sequence[float | None], waiting: Sequence[float | None], parallel: int, guess: float
) -> float | None:
    """Return the seconds until all jobs are done, if slots are always full; None if nothing is known.

    Args:
        running (Sequence): What is left of each running job; None: not known.
        waiting (Sequence): What each waiting job will take; None: not known.
        parallel (int): Jobs at once.
        guess (float): Stands for what is not known: what a running job takes from begin to end.
    """
    known = [one for one in running if one is not None]
    if not known:
        return None
    total = sum(guess if one is None else one for one in (*running, *waiting))
    return max(max(known), total / parallel)


class Progress:
    """Shows the running of jobs: a block that is redrawn on a terminal; elsewhere a line when something happens.

    Args:
        stream (TextIO): Where to write; None: nothing is shown.
        parallel (int, optional): Jobs at once. (default: ``1``)
        settled (Callable, optional): Called with each job whose outcome is known. (default: ``None``)
    """

    def __init__(self, stream: TextIO | None, parallel: int = 1, settled: Callable[[Job], None] | None = None) -> None:
        self.stream = stream
        self._tell = settled
        self.parallel = parallel
        self.redraws = stream is not None and stream.isatty()
        self.counts = {"done": 0, "not done": 0}
        self.durations = Durations()
        self._drawn = 0  # lines of the block on the screen
        self._shown_at = time.monotonic() if not self.redraws else 0.0

    def say(self, line: str, plain: bool = False) -> None:
        """Print a line that stays; `plain`: only where there is no block."""
        if self.stream is not None and not (plain and self.redraws):
            self.stream.write(f"{self._erasure()}{line}\n")
            self.stream.flush()
            self._drawn, self._shown_at = 0, self._shown_at if not self.redraws else 0.0

    def settled(self, job: Job, done: bool, took: float = 0.0) -> None:
        """Count a job of which it is known what becomes of it; `took`: the seconds that it ran here."""
        self.counts["done" if done else "not done"] += 1
        if done:
            self.durations.add(job.group, job.status().record, took)
        if self._tell:
            self._tell(job)

    def ended(self, running: Running, outcome: str, error: str) -> None:
        """Say that a job ended."""
        took = f" ({duration(round(running.seconds))})"
        self.say(f"{outcome:<8}{running.job.label}{f': {error}; log: {shortened(running.job.log)}' if error else took}")

    def show(self, running: Sequence[Running], waiting: Sequence[Job]) -> None:
        """Draw the block, or report, if it is time."""
        now = time.monotonic()
        if self.stream is None or now - self._shown_at < (REDRAW if self.redraws else REPORT) or not running:
            return
        self._shown_at = now
        lines = self.lines(running, waiting)
        if self.redraws:
            columns, rows = shutil.get_terminal_size()
            lines = [line[: columns - 1] for line in lines[-max(1, rows - 1) :]]
        self.stream.write(self._erasure() + "".join(f"{line}\n" for line in lines))
        self.stream.flush()
        self._drawn = len(lines) if self.redraws else 0

    def lines(self, running: Sequence[Running], waiting: Sequence[Job]) -> list[str]:
        """Return the lines of the block."""
        width = max((len(one.job.label) for one in running), default=0)
        reached = [epochs(one) for one in running]
        left = [known.to_go if known else self.durations.left(one) for one, known in zip(running, reached, strict=True)]
        lines = []
        for one, known, seconds in zip(running, reached, left, strict=True):
            part = f"epoch {known.done} of {known.of}" if known else f"for {duration(round(one.seconds))}"
            ends = bool(known) and known.done >= known.of
            until = "" if seconds is None else ", saving its results" if ends else f", {_until(seconds)}"
            lines.append(f"{one.job.label:<{width}}  {part}{until}")
        whole = [one.seconds + seconds for one, seconds in zip(running, left, strict=True) if seconds is not None]
        expected = [self.durations.expected(job) for job in waiting]
        total = to_go(left, expected, self.parallel, guess=fmean(whole) if whole else 0.0)
        counts = {**self.counts, "running": len(running), "waiting": len(waiting)}
        until = f"about {_until(total)}" if total else "time to go not known yet"
        return [*lines, f"{', '.join(f'{n} {state}' for state, n in counts.items() if n)}; {until}"]

    def close(self) -> None:
        """Take the block away."""
        if self.stream is not None:
            self.stream.write(self._erasure())
            self.stream.flush()
            self._drawn = 0

    def _erasure(self) -> str:
        """Return what moves to the start of the block and clears it, sent in one piece with what replaces it."""
        return f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""


def _until(seconds: float) -> str:
    """Return the ETA of something that is not done: it is never 0 s."""
    return f"{duration(max(seconds, 1.0))} to go" if seconds > 0 else "longer than expected"


def shortened(path: Path) -> Path:
    """Return a path below the working directory where it is."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


TICK = 0.1  # seconds between two looks at the running jobs
PATIENCE = 10.0  # seconds to wait for a folder in use: loader workers of a killed run hold it for about 5


class Outcome(enum.StrEnum):
    """Outcome of a job."""

    DONE = "done"
    FAILED = "failed"
    BLOCKED = "not run"  # something that it needs is not done
    IN_USE = "in use"  # by another process, to the last
    STOPPED = "stopped"  # by a signal, or not begun before it


@dataclass(frozen=True)
class Result:
    """Outcome of one job, and the reason in one line."""

    job: Job
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Setup:
    """How jobs are run.

    Args:
        root (Path): Folder they are started in.
        facts (Mapping, optional): Code version, packages and hardware, for the records of commands. (default: ``{}``)
        sample (bool, optional): Of these records. (default: ``False``)
        parallel (int, optional): Jobs at once. (default: ``1``)
        retry (bool, optional): Repeat what diverged too; what failed is repeated in any case. (default: ``False``)
    """

    root: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    sample: bool = False
    parallel: int = 1
    retry: bool = False

    @property
    def threads(self) -> int:
        """Return the number of threads per job."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // self.parallel)


class JobsStopped(Exception):
    """A signal ended the running of jobs; everything can be resumed. The results are as of `run_jobs`."""

    def __init__(self, signum: int, results: list[Result]) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum
        self.results = results


def run_jobs(jobs: Sequence[Job], setup: Setup, progress: Progress | None = None) -> list[Result]:
    """Run what is not done of some jobs and of what they need; return the result of each, needs first.

    One that fails does not stop the others. A job that another process runs is waited for while others are left to
    run, and `PATIENCE` seconds more.

    Raises:
        JobsStopped: after SIGINT, SIGTERM or SIGHUP. The running jobs were asked to save and to end; a second signal
            kills them.
    """
    loop = _Loop(with_pending_needs(jobs), setup, progress or Progress(None))
    with StopSignals(forward=True) as interrupts:
        try:
            while loop.step(stopping=bool(interrupts.signum)):
                loop.signal(interrupts.order())
                time.sleep(TICK)
        finally:  # after an error of ours, too, no job goes on unattended
            loop.end()
    if interrupts.signum:
        raise JobsStopped(interrupts.signum, loop.ordered())
    return loop.ordered()


class _Loop:
    def __init__(self, jobs: list[Job], setup: Setup, progress: Progress) -> None:
        self.jobs, self.setup, self.progress = jobs, setup, progress
        self.paths = {job.path for job in jobs}
        self.waiting = list(jobs)
        self.running: list[Running] = []
        self.results: dict[Path, Result] = {}
        self.idle_since: float | None = None
        for job in jobs:
            self._skip(job)

    def step(self, stopping: bool) -> bool:
        """Settle what ended, start what can start, and return whether anything is left."""
        for one in [one for one in self.running if one.process.poll() is not None]:
            self._ended(one, stopping)
        for job in list(self.waiting):
            if stopping:
                self._settle(job, Outcome.STOPPED)
            elif len(self.running) < self.setup.parallel and not self._skip(job) and self._is_ready(job):
                self._begin(job)
        self._give_up()
        self.progress.show(self.running, self.waiting)
        return bool(self.running or self.waiting)

    def signal(self, signum: int) -> None:
        if signum == signal.SIGINT and self.running:
            self.progress.say(f"stopping: {len(self.running)} running jobs save and end; Ctrl-C again kills them")
        for one in self.running if signum else ():
            one.signal(signum)

    def end(self) -> None:
        for one in list(self.running):
            one.signal(signal.SIGINT)
            one.process.wait()
            self._ended(one, stopping=True)
        self.progress.close()

    def ordered(self) -> list[Result]:
        return [self.results[job.path] for job in self.jobs]

    def _is_ready(self, job: Job) -> bool:
        return all(need.path in self.results for need in job.needs if need.path in self.paths)

    def _skip(self, job: Job) -> bool:
        """Settle a job that is not to be started."""
        needs = [self.results[need.path] for need in job.needs if need.path in self.results]
        bad = next((need for need in needs if need.outcome is not Outcome.DONE), None)
        if bad:
            self._settle(job, Outcome.BLOCKED, f"needs {bad.job.label}, which is {bad.outcome}")
            return True
        status = job.status()
        if status.state is State.DONE and self._is_ready(job):
            self._settle(job, Outcome.DONE)
        elif status.state is State.DIVERGED and not self.setup.retry:
            self._settle(job, Outcome.FAILED, f"{status.error} (earlier; --retry repeats it)")
        return job.path in self.results

    def _begin(self, job: Job) -> None:
        lock = take(job)
        if lock is None:
            return
        if job.status().state is State.DONE:  # by another process, before the lock was ours
            os.close(lock)
            self._settle(job, Outcome.DONE)
            return
        self.waiting.remove(job)
        self.running.append(start(job, lock, self.setup.root, self.setup.threads))
        self.progress.say(f"start   {job.label}", plain=True)

    def _ended(self, one: Running, stopping: bool) -> None:
        self.running.remove(one)
        error = finish(one, self.setup.facts, self.setup.sample, stopping)
        outcome = Outcome.FAILED if error else Outcome.DONE
        if stopping and one.job.status().state is not State.DONE:
            outcome = Outcome.STOPPED
        self._note(Result(one.job, outcome, error), one.seconds)
        self.progress.ended(one, outcome, error)

    def _settle(self, job: Job, outcome: Outcome, why: str = "") -> None:
        self.waiting.remove(job)
        self._note(Result(job, outcome, why))

    def _note(self, result: Result, took: float = 0.0) -> None:
        self.results[result.job.path] = result
        self.progress.settled(result.job, result.outcome is Outcome.DONE, took)

    def _give_up(self) -> None:
        """Leave what is in use to those who use it, once nothing else can be done."""
        if self.running or not self.waiting:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = time.monotonic()
        elif time.monotonic() - self.idle_since > PATIENCE:
            for job in [job for job in self.waiting if self._is_ready(job)]:
                self._settle(job, Outcome.IN_USE, "another process runs it")
