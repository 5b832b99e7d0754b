"""Job runner: runs jobs as processes of this machine, in parallel, each after the jobs that it needs."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import IO, Any, NamedTuple, TextIO

from graphgps_kmip.common.atomic_write import free_name, replace_file
from graphgps_kmip.common.environment import duration, now
from graphgps_kmip.common.file_lock import is_held, take_descriptor
from graphgps_kmip.common.signals import StopSignals
from graphgps_kmip.experiments.jobs import Job, with_pending_needs
from graphgps_kmip.experiments.run_status import State, failure_file
from graphgps_kmip.results.run_folder import RECORD, writing
from graphgps_kmip.results.run_record import examine_record, write_record

TICK = 0.1  # seconds between two looks at the running jobs
PATIENCE = 10.0  # seconds to wait for a folder in use: loader workers of a killed run hold it for about 5
REPORT = 60.0  # seconds between two progress lines
TAIL = 20_000  # bytes of a log in which its error is looked for


class Outcome(enum.StrEnum):
    """Outcome of a job."""

    DONE = "done"
    FAILED = "failed"
    BLOCKED = "not run"  # something that it needs is not done
    IN_USE = "in use"  # by another process, to the last
    STOPPED = "stopped"  # by a signal, or not begun before it


class Result(NamedTuple):
    """Outcome of one job, and the reason in one line."""

    job: Job
    outcome: Outcome
    why: str = ""


@dataclass(frozen=True)
class Setup:
    """How jobs are run."""

    root: Path  # folder they are started in
    facts: Mapping[str, Any] = field(default_factory=dict)  # code version, packages, hardware: for records of commands
    sample: bool = False  # of these records
    parallel: int = 1  # jobs at once
    retry: bool = False  # repeat what diverged too; what failed is repeated in any case

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


def run_jobs(jobs: Sequence[Job], setup: Setup, stream: TextIO | None = None) -> list[Result]:
    """Run what is not done of some jobs and of what they need; return the result of each, needs first.

    One that fails does not stop the others. A job that another process runs is waited for while others are left to
    run, and `PATIENCE` seconds more. Progress is written to `stream`.

    Raises:
        JobsStopped: after SIGINT, SIGTERM or SIGHUP, which let running jobs save; a second signal kills them.
    """
    jobs = with_pending_needs(jobs)
    paths = {job.path for job in jobs}
    needs = {job.path: [need.path for need in job.needs if need.path in paths] for job in jobs}
    results: dict[Path, Result] = {}
    for job in jobs:
        if skipped := _skip(job, needs[job.path], results, setup.retry):
            results[job.path] = skipped
    waiting, running = [job for job in jobs if job.path not in results], []
    progress, busy_at = _Progress(stream, setup.parallel), time.monotonic()
    with StopSignals(forward=True) as interrupts:
        try:
            while waiting or running:
                for job in waiting.copy():
                    if interrupts.signum:
                        results[job.path] = Result(job, Outcome.STOPPED)
                    elif len(running) == setup.parallel:
                        break
                    elif skipped := _skip(job, needs[job.path], results, setup.retry):
                        results[job.path] = skipped
                    elif any(path not in results for path in needs[job.path]):
                        continue
                    elif process := start(job, setup):
                        running.append(process)
                        progress.say(f"start   {job.label}")
                    elif time.monotonic() - busy_at > PATIENCE:
                        results[job.path] = Result(job, Outcome.IN_USE, "another process runs it")
                    else:
                        continue
                    waiting.remove(job)
                busy_at = time.monotonic() if running else busy_at
                progress.show(running, waiting, results)
                time.sleep(TICK if running or waiting else 0)
                order = interrupts.order()
                if order == signal.SIGTERM and running:
                    progress.say(f"stopping: {len(running)} running jobs save and end; Ctrl-C again kills them")
                for process in running.copy():
                    if order:
                        process.signal(order)
                    if process.process.poll() is not None:
                        running.remove(process)
                        results[process.job.path] = finish(process, setup, stopped=bool(interrupts.signum))
                        progress.end(process, results[process.job.path])
        finally:  # after an error of ours, too, no job goes on unattended
            for process in running:
                process.signal(signal.SIGTERM)
                process.process.wait()
                finish(process, setup, stopped=True)
    ordered = [results[job.path] for job in jobs]
    if interrupts.signum:
        raise JobsStopped(interrupts.signum, ordered)
    return ordered


def _skip(job: Job, needs: Sequence[Path], results: Mapping[Path, Result], retry: bool) -> Result | None:
    """Return the result of a job that is not to be started; None of one that is, or has to wait."""
    for need in (results[path] for path in needs if path in results):
        if need.outcome is not Outcome.DONE:
            return Result(job, Outcome.BLOCKED, f"needs {need.job.label}, which is {need.outcome}")
    status = job.status()
    if status.state is State.DONE and all(path in results for path in needs):
        return Result(job, Outcome.DONE)
    if status.state is State.DIVERGED and not retry:
        return Result(job, Outcome.FAILED, f"{status.error} (earlier; --retry repeats it)")
    return None


def summary(results: Sequence[Result]) -> str:
    """Return a line for each job that could not be done, and how many are done or stopped."""
    counts = Counter(result.outcome for result in results)
    lines = []
    for result in results:
        if result.outcome not in (Outcome.DONE, Outcome.STOPPED):
            log = f"; log: {_shorten(result.job.log)}" if result.outcome is Outcome.FAILED else ""
            lines.append(f"{result.outcome:<8}{result.job.label}: {result.why}{log}")
    stopped = f", {counts[Outcome.STOPPED]} stopped" if counts[Outcome.STOPPED] else ""
    return "\n".join([*lines, f"{counts[Outcome.DONE]} of {len(results)} jobs are done{stopped}"])


@dataclass
class Running:
    """A running job."""

    job: Job
    process: subprocess.Popen  # leader of its own process group: a Ctrl-C of the terminal does not reach it
    log: IO[str]  # open for appending
    lock: int  # descriptor of the lock
    log_start: int  # size of the log when this attempt began
    began: float = field(default_factory=time.monotonic)

    def signal(self, signum: int) -> None:
        """Send a signal to the job and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)

    @property
    def seconds(self) -> float:
        """Return the time since it began."""
        return time.monotonic() - self.began


def start(job: Job, setup: Setup) -> Running | None:
    """Start a job, which inherits the lock; None if another process runs it, or has just finished it."""
    with writing(job.path):
        job.path.parent.mkdir(parents=True, exist_ok=True)
        lock = take_descriptor(job.lock_file("job.lock"))
    if lock is None:
        return None
    if is_held(job.lock_file("lock")) or job.status().state is State.DONE:  # a main.py that somebody else started
        os.close(lock)
        return None
    with writing(failure_file(job.path)):
        failure_file(job.path).unlink(missing_ok=True)
    if job.command:
        with writing(job.path):
            # Finished results of other settings are moved aside, as by main.py, and those with a damaged record.
            if job.status().state is State.STALE or examine_record(job.path)[1]:
                job.path.rename(free_name(job.path, "old"))
            job.path.mkdir(parents=True, exist_ok=True)
            for path in (job.path / name for name in (RECORD, *job.command.produces)):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    with writing(job.log):
        log = open(job.log, "a", encoding="utf-8")  # noqa: SIM115 (closed by `finish`)
        log_start = log.tell()
        log.write(f"# {now()}  python {shlex.join(job.arguments)}\n")
        log.flush()
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(setup.threads))
    process = subprocess.Popen(
        [sys.executable, *job.arguments],
        cwd=setup.root,
        env=os.environ | environment | {"PYTHONUNBUFFERED": "1"},  # else an error would come before earlier output
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(lock,),
    )
    return Running(job, process, log, lock, log_start)


def finish(running: Running, setup: Setup, stopped: bool) -> Result:
    """Write the record or the failure of a job whose process has ended; `stopped`: it was asked to end."""
    job, code, seconds = running.job, running.process.returncode, round(running.seconds, 3)
    running.log.close()
    try:
        missing = [name for name in job.command.produces if not (job.path / name).exists()] if job.command else []
        if job.command and code == 0 and not missing:
            record = {"finished": True, "config_hash": job.key(), "finished_at": now(), "seconds": seconds}
            write_record(job.path, {**record, **setup.facts, "sample": setup.sample})
        if job.status().state is State.DONE:
            return Result(job, Outcome.DONE)
        if stopped:
            return Result(job, Outcome.STOPPED)
        error = f"it ended well, but wrote no {', '.join(missing)}" if code == 0 and missing else _read_error(running)
        try:
            key = job.key()
        except ValueError:  # of a config that cannot be read; the log says why
            key = ""
        failure = {"error": error, "exit_code": code, "date": now(), "config_hash": key, "log": str(job.log)}
        with writing(failure_file(job.path)):
            replace_file(failure_file(job.path), json.dumps({**failure, "seconds": seconds}, indent=2).encode())
        return Result(job, Outcome.FAILED, error)
    finally:
        os.close(running.lock)


def _read_error(running: Running) -> str:
    """Return the line of the log that says why the job ended: the last ``error: ...``, else the last line."""
    code = running.process.returncode
    with open(running.job.log, "rb") as log:
        log.seek(max(running.log_start, log.seek(0, os.SEEK_END) - TAIL))
        lines = [line.strip() for line in log.read().decode(errors="replace").replace("\r", "\n").splitlines()]
    lines = [line for line in lines if line and not line.startswith("# ")]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "no output")
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}{', as a machine out of memory does' if name == 'SIGKILL' else ''}; last: {last}"
    if code == 0:
        return f"it ended well, but its record is not that of this configuration; last: {last}"
    return last.removeprefix("error: ")


class _Progress:
    """Progress of jobs on a stream, if there is one."""

    def __init__(self, stream: TextIO | None, parallel: int) -> None:
        self.stream, self.parallel = stream, parallel
        self.seconds: list[float] = []  # of jobs that were done here
        self.shown_at = time.monotonic()

    def say(self, line: str) -> None:
        """Print a line."""
        if self.stream is not None:
            print(line, file=self.stream, flush=True)

    def end(self, running: Running, result: Result) -> None:
        """Say that a job ended."""
        self.seconds += [running.seconds] if result.outcome is Outcome.DONE else []
        took = f" ({duration(round(running.seconds))})"
        why = f": {result.why}; log: {_shorten(running.job.log)}" if result.why else took
        self.say(f"{result.outcome:<8}{running.job.label}{why}")

    def show(self, running: Sequence[Running], waiting: Sequence[Job], results: Mapping[Path, Result]) -> None:
        """Print the progress line, if it is time."""
        if not running or time.monotonic() - self.shown_at < REPORT:
            return
        self.shown_at = time.monotonic()
        done = sum(result.outcome is Outcome.DONE for result in results.values())
        counts = {"done": done, "not done": len(results) - done, "running": len(running), "waiting": len(waiting)}
        line = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        if self.seconds:  # each of the others takes as long as those that are done
            left = fmean(self.seconds) * (len(running) + len(waiting)) - sum(process.seconds for process in running)
            line += f", about {duration(max(left / self.parallel, 1.0))} to go"
        self.say("; ".join([line, *(f"{process.job.label} {describe_epochs(process)}" for process in running)]))


def describe_epochs(running: Running) -> str:
    """Return ``epoch 3, 1 min to go`` of a training, from what it writes; before its first epoch here ``for 40 s``."""
    stats = running.job.path / "train" / "stats.json"
    with contextlib.suppress(OSError, ValueError, LookupError):  # being written, or a network of another package
        age = time.time() - stats.stat().st_mtime
        if age < running.seconds:  # else of an earlier attempt
            line = json.loads(stats.read_text().splitlines()[-1])
            return f"epoch {line['epoch'] + 1}, {duration(max(line['eta'] - age, 1.0))} to go"
    return f"for {duration(round(running.seconds))}"


def _shorten(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
