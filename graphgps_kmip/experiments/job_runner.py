"""Job runner: runs jobs in parallel on this machine, each after the jobs that it needs.

Our own: process pools and submitit's local executor know no dependencies, no finished results that are skipped, and no
Ctrl-C after which each job saves and ends.
"""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.experiments.job_process import Running, finish, start, take
from graphgps_kmip.experiments.jobs import Job, with_pending_needs
from graphgps_kmip.experiments.progress import Progress
from graphgps_kmip.experiments.run_status import State

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
    """A signal ended the running of jobs; everything can be resumed.

    Args:
        signum (int): Of the signal.
        results (list): As `run_jobs` would have returned them.
    """

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
