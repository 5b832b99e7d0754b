"""Slurm: sends jobs to a cluster through the package submitit, with their dependencies, also over several nodes."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.jobs import Job, Place, with_pending_needs
from graphgps_kmip.experiments.run_status import State

LOST_NEED = {"kill-on-invalid-dep": "yes"}  # a job whose need failed leaves the queue instead of waiting for ever
NODE_OPTIONS = {"nodes", "tasks_per_node", "ntasks_per_node", "gpus_per_node"}  # set by --nodes
RESTARTS = 3  # of all processes of torchrun, when one or a whole node is lost
SAVING = 120  # seconds before the time limit, for the last completed epoch to be saved
REQUEUES = 10**6  # times that a job whose time is up is queued again


class Worker:
    """What a node runs: one job, as a command; pickled by value, and sent to the queue again when its time is up."""

    def __init__(self, arguments: Sequence[str], root: Path, gpus: int = 0) -> None:
        self.arguments, self.root, self.gpus = list(arguments), root, gpus
        self.process: subprocess.Popen | None = None

    def __call__(self) -> None:
        """Run it; a `CalledProcessError` if it failed, so that what depends on it is not started."""
        # Slurm signals the whole job before its time is up, and SIGUSR2 would kill whoever does not expect it;
        # submitit does, and calls `checkpoint`.
        ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # noqa: E731
        command = [sys.executable, *(self.torchrun() if self.gpus else []), *self.arguments]
        self.process = subprocess.Popen(command, cwd=self.root, preexec_fn=ignore)  # noqa: PLW1509
        if code := self.process.wait():
            raise subprocess.CalledProcessError(code, command)

    def torchrun(self) -> list[str]:
        """Return torchrun's arguments: the first node is the meeting point, at a port of the job's number."""
        import submitit

        job, cores = submitit.JobEnvironment(), int(os.environ.get("SLURM_CPUS_ON_NODE", self.gpus))
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // self.gpus))
        number = int(job.raw_job_id)
        options = {"nnodes": job.num_nodes, "nproc-per-node": self.gpus, "max-restarts": RESTARTS, "rdzv-id": number}
        options |= {"rdzv-backend": "c10d", "rdzv-endpoint": f"{job.hostnames[0]}:{10000 + number % 20000}"}
        pairs = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        return ["-m", "torch.distributed.run", *pairs]

    def checkpoint(self) -> Any:
        """Let the run save its last completed epoch, and return what submitit sends to the queue again."""
        from submitit.helpers import DelayedSubmission

        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # `wait` holds a lock, which `__call__` has
        return DelayedSubmission(type(self)(self.arguments, self.root, self.gpus))


def run_on_slurm(jobs: Sequence[Job], place: Place, args: argparse.Namespace) -> None:
    """Submit each missing job as a ``run --job`` (with ``--nodes`` by torchrun)."""
    out = place.root / place.out
    options, folder = parse_options(args.slurm, args.nodes, args.gpus_per_node), out / "slurm" / "%j"
    if args.nodes and (commands := [job.label for job in jobs if job.command]):
        raise ManifestError(
            f"--nodes: {commands[0]} is a command, which runs in one process: choose trainings (--only AXIS=VALUE), "
            "and run the commands without --nodes"
        )
    flags = ["--out", str(place.out), *(["--sample"] if place.sample else []), *(["--retry"] if args.retry else [])]
    flags += ["--data", str(place.data)] if place.data else []
    flags += ["--seeds", str(args.seeds)] if args.seeds else []
    script = ["run/reproduce.py"] if place.shipped is None else ["-m", "graphgps_kmip.reproduce"]

    def make_worker(job: Job) -> Worker:
        if args.nodes:  # torchrun's flag for a module is --module
            argv = ("--module", *job.arguments[1:]) if job.arguments[0] == "-m" else job.arguments
            return Worker(argv, place.root, args.gpus_per_node)
        return Worker([*script, "run", *args.ids, "--job", str(job.path.relative_to(out)), *flags], place.root)

    submit(jobs, make_worker, folder, options, args.slurm_dry_run)


def parse_options(texts: Sequence[str], nodes: int | None = None, gpus: int | None = None) -> dict[str, Any]:
    """Return options ``key=value,key=value``; ``time`` in minutes or as ``[days-]hours:minutes:seconds``."""
    allowed = _import_submitit().SlurmExecutor._valid_parameters() - (NODE_OPTIONS if nodes else set())
    options: dict[str, Any] = {}
    for item in (item for text in texts for item in text.split(",")):
        key, equals, value = item.partition("=")
        if not (equals and value):
            raise ManifestError(f"--slurm: expected key=value,key=value, got {item!r}")
        if key not in allowed:
            raise ManifestError(f"--slurm: unknown key {key!r}.{suggest(key, allowed)}")
        options[key] = _parse_minutes(value) if key == "time" else yaml.safe_load(value)
    if "time" not in options:
        raise ManifestError("--slurm: time is missing: the longest that one job may take, such as time=24:00:00")
    if nodes:
        options |= {"nodes": nodes, "ntasks_per_node": 1, "gpus_per_node": gpus, "srun_args": ["--kill-on-bad-exit=0"]}
    return options


def _parse_minutes(text: str) -> int:
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return max(1, days * 1440 + hours * 60 + minutes + (seconds > 0))
    if text.isdigit():
        return int(text)
    raise ManifestError(f"--slurm: time is minutes or [days-]hours:minutes:seconds, got {text!r}")


def group_jobs(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return what is not done of some jobs and of their needs, those with the same needs together, needs first."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    pending = [job for job in with_pending_needs(jobs) if job.status().state is not State.DONE]
    paths = {job.path for job in pending}
    for job in pending:
        groups.setdefault(tuple(str(need.path) for need in job.needs if need.path in paths), []).append(job)
    return list(groups.values())


def submit(
    jobs: Sequence[Job],
    make_worker: Callable[[Job], Worker],
    folder: Path,
    options: Mapping[str, Any],
    dry_run: bool = False,
) -> None:
    """Submit what is not done of some jobs and of their needs.

    A dry run prints the files that sbatch would get, and writes nothing.

    Args:
        jobs (Sequence): Those asked for.
        make_worker (Callable): What runs one job alone.
        folder (Path): For submitit's own files.
        options (Mapping): Of `parse_options`.
        dry_run (bool, optional): Whether this is a dry run. (default: ``False``)
    """
    import cloudpickle  # comes with submitit

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ids: dict[Path, str] = {}
    for number, group in enumerate(group_jobs(jobs), start=1):
        needs = dict.fromkeys(ids[need.path] for need in group[0].needs if need.path in ids)
        executor = _make_executor(folder, options, list(needs), dry_run)
        if dry_run:
            if len(group) > 1:
                executor.parameters["map_count"] = len(group)
            print(f"# group {number}: {len(group)} jobs, the first one {group[0].label}")
            print(executor._make_submission_file_text(executor._submitit_command_str, ""))
            ids |= {job.path: f"<jobs of group {number}>" for job in group}
            continue
        try:
            with executor.batch():
                sent = [executor.submit(make_worker(job)) for job in group]
        except _import_submitit().core.utils.FailedJobError as error:
            raise ManifestError(f"--slurm: sbatch failed: {error}") from error
        ids |= {job.path: handle.job_id for job, handle in zip(group, sent, strict=True)}
        print(f"submitted {len(group)} jobs, ids {sent[0].job_id} to {sent[-1].job_id}, logs in {folder}")


def _make_executor(folder: Path, options: Mapping[str, Any], needs: Sequence[str], dry_run: bool) -> Any:
    """Return submitit's executor; the ids of `needs` are those of jobs that must end well first."""
    submitit = _import_submitit()

    class Preview(submitit.SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:  # here may be no Slurm
            return 1

    try:
        executor = (Preview if dry_run else submitit.SlurmExecutor)(folder, max_num_timeout=REQUEUES)
    except RuntimeError as error:
        raise ManifestError(f"--slurm: {error}") from error
    dependent = {"dependency": f"afterok:{':'.join(needs)}", "additional_parameters": LOST_NEED} if needs else {}
    executor.update_parameters(**{"job_name": "reproduce", "signal_delay_s": SAVING, **options, **dependent})
    return executor


def _import_submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ManifestError("--slurm needs the package submitit: pip install submitit") from error
    return submitit
