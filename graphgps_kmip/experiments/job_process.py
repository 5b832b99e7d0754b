"""Process of one job: lock, log file, environment, and the record or failure that is written when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from graphgps_kmip.common.atomic_write import free_name, replace_file
from graphgps_kmip.common.durations import now
from graphgps_kmip.common.file_lock import is_held, take_descriptor
from graphgps_kmip.experiments.jobs import Job
from graphgps_kmip.experiments.run_status import State, failure_file
from graphgps_kmip.results.run_folder import RECORD, writing
from graphgps_kmip.results.run_record import examine_record, write_record

TAIL = 20_000  # bytes of a log in which its error is looked for


@dataclass
class Running:
    """A job under way.

    Args:
        job (Job): Which one.
        process (Popen): Leader of a process group of its own, so that a Ctrl-C of the terminal does not reach it.
        log (IO): Open for appending.
        lock (int): Descriptor of the lock.
        log_start (int): Size of the log when this attempt began.
        began (float): Clock of `time.monotonic`.
    """

    job: Job
    process: subprocess.Popen
    log: IO[str]
    lock: int
    log_start: int
    began: float

    def signal(self, signum: int) -> None:
        """Send a signal to the job and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)

    @property
    def seconds(self) -> float:
        """Return the time since it began."""
        return time.monotonic() - self.began


def take(job: Job) -> int | None:
    """Return the lock of a job, as a file descriptor; None if another process runs the job."""
    with writing(job.path):
        job.path.parent.mkdir(parents=True, exist_ok=True)
        lock = take_descriptor(_lock_file(job, "job.lock"))
    if lock is not None and is_held(_lock_file(job, "lock")):  # of a main.py that somebody else started
        os.close(lock)
        return None
    return lock


def is_running(job: Job) -> bool:
    """Return whether some process runs a job, without changing anything."""
    return any(is_held(_lock_file(job, ending)) for ending in ("job.lock", "lock"))


def start(job: Job, lock: int, root: Path, threads: int) -> Running:
    """Start a job whose lock was taken.

    The child inherits the lock: it stays locked should this process be killed and the child live on.
    """
    with writing(failure_file(job.path)):
        failure_file(job.path).unlink(missing_ok=True)
    if job.command:
        _clear(job)
    with writing(job.log):
        log = open(job.log, "a", encoding="utf-8")  # noqa: SIM115 (closed by `finish`)
        log_start = log.tell()
        log.write(f"# {now()}  python {shlex.join(job.words)}\n")
        log.flush()
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    with _interrupts_heard():
        process = subprocess.Popen(
            [sys.executable, *job.words],
            cwd=root,
            env=os.environ | counts | {"PYTHONUNBUFFERED": "1"},  # else an error would stand before earlier output
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
    return Running(job, process, log, lock, log_start, time.monotonic())


@contextlib.contextmanager
def _interrupts_heard() -> Iterator[None]:
    """Let a process that is started here hear SIGINT, by which jobs are stopped.

    In the background of a script this process has it ignored, which a child would inherit; a handler it does not.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def finish(running: Running, facts: Mapping[str, Any], sample: bool, stopped: bool) -> str:
    """Write how a job ended, and return why it failed, empty if it did not or was stopped by us.

    Args:
        running (Running): Its process has ended.
        facts (Mapping): Code version, packages and hardware, for the record of a command.
        sample (bool): Of the record.
        stopped (bool): It was asked to stop.
    """
    job, code = running.job, running.process.returncode
    running.log.close()
    try:
        lost = _lost(job) if code == 0 and job.command else []
        if code == 0 and job.command and not lost:
            _write_record(job, running.seconds, facts, sample)
        if job.status().state is State.DONE or stopped:
            return ""
        error = f"it ended well, but wrote no {', '.join(lost)}" if lost else _error(running)
        _write_failure(running, error)
        return error
    finally:
        os.close(running.lock)


def _lock_file(job: Job, ending: str) -> Path:
    return job.path.with_name(f".{job.path.name}.{ending}")


def _clear(job: Job) -> None:
    """Move finished results of other settings aside, as ``main.py`` does; drop what an unfinished attempt produced.

    What has a damaged record may be finished: it is moved aside too.
    """
    with writing(job.path):
        if job.status().state is State.STALE or examine_record(job.path)[1]:
            job.path.rename(free_name(job.path, "old"))
        job.path.mkdir(parents=True, exist_ok=True)
        for path in (job.path / name for name in (RECORD, *job.command.produces)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _lost(job: Job) -> list[str]:
    return [name for name in job.command.produces if not (job.path / name).exists()]


def _write_record(job: Job, seconds: float, facts: Mapping[str, Any], sample: bool) -> None:
    record = {
        "finished": True,
        "config_hash": job.key(),
        "finished_at": now(),
        "seconds": round(seconds, 3),
        **facts,
        "sample": sample,
    }
    write_record(job.path, record)


def _write_failure(running: Running, error: str) -> None:
    job, code = running.job, running.process.returncode
    try:
        key = job.key()
    except ValueError:  # of a config that cannot be read; the log says why
        key = ""
    failure = {"error": error, "exit_code": code, "date": now(), "config_hash": key, "log": str(job.log)}
    failure["seconds"] = round(running.seconds, 3)
    with writing(failure_file(job.path)):
        replace_file(failure_file(job.path), json.dumps(failure, indent=2).encode())


def _error(running: Running) -> str:
    """Return the line of the log that says why the job ended: the last ``error: ...``, else the last line."""
    code = running.process.returncode
    with open(running.job.log, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(running.log_start, size - TAIL))
        lines = [line.strip() for line in log.read().decode(errors="replace").replace("\r", "\n").splitlines()]
    lines = [line for line in lines if line and not line.startswith("# ")]
    said = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "no output")
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}{', as a machine out of memory does' if name == 'SIGKILL' else ''}; last: {said}"
    if code == 0:
        return f"it ended well, but its record is not that of this configuration; last: {said}"
    return said.removeprefix("error: ")
