"""Slurm: submits jobs to a cluster through the package submitit, with their dependencies."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.jobs import Job, Place, with_pending_needs
from graphgps_kmip.experiments.run_status import State

LOST_NEED = {"kill-on-invalid-dep": "yes"}  # a job whose need failed leaves the queue instead of waiting for ever


class Worker:
    """What a node runs: one job, as a command of its own; sent to the queue again when its time is up.

    It travels by value, and needs nothing of this package where it is unpacked.
    """

    def __init__(self, words: Sequence[str], root: Path) -> None:
        self.words = list(words)
        self.root = root

    def __call__(self) -> None:
        """Run it.

        Raises:
            CalledProcessError: it failed, so that what depends on it is not started.
        """
        # Slurm signals the whole job before its time is up, and SIGUSR2 would kill whoever does not expect it;
        # submitit does, and sends the job to the queue again, where it resumes.
        ignore = lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # noqa: E731
        subprocess.run([sys.executable, *self.words], cwd=self.root, check=True, preexec_fn=ignore)  # noqa: PLW1509

    def checkpoint(self) -> Any:
        """Return what submitit sends to the queue again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_on_slurm(jobs: Sequence[Job], place: Place, args: argparse.Namespace) -> int:
    """Submit what is missing, each job as a ``run --job`` of its own, or show what would be; return the exit code."""
    out = place.root / place.out
    options, folder = parsed_options(args.slurm), out / "slurm" / "%j"
    if args.slurm_dry_run:
        print(preview(jobs, folder, options))
        return 0
    flags = ["--out", str(place.out), *(["--sample"] if place.sample else []), *(["--retry"] if args.retry else [])]
    flags += ["--data", str(place.data)] if place.data else []
    flags += ["--seeds", str(args.seeds)] if args.seeds else []

    def words_of(job: Job) -> list[str]:
        script = ["run/reproduce.py"] if place.shipped is None else ["-m", "graphgps_kmip.reproduce"]
        return [*script, "run", *args.ids, "--job", str(job.path.relative_to(out)), *flags]

    return 0 if submit(jobs, words_of, place.root, folder, options, say=print) else 1


def parsed_options(texts: Sequence[str]) -> dict[str, Any]:
    """Return options ``key=value,key=value``; ``time`` in minutes or as ``[days-]hours:minutes:seconds``.

    Raises:
        ManifestError: no such option of sbatch, or no value.
    """
    known = {*_submitit().SlurmExecutor._valid_parameters(), "executor"}
    options: dict[str, Any] = {"executor": "slurm"}
    for key, value in option_items(texts, known):
        options[key] = int(value) if key == "time" else yaml.safe_load(value)
    if options["executor"] not in ("slurm", "local"):
        raise ManifestError(f"--slurm: executor is slurm or local, got {options['executor']!r}")
    return options


def option_items(texts: Sequence[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of ``key=value,key=value``; that of ``time`` in minutes.

    Args:
        texts (Sequence): The value of each ``--slurm``.
        known (Collection): The keys that there are.

    Raises:
        ManifestError: another key, no value, or no time.
    """
    items = [item for text in texts for item in text.split(",")]
    for item in items:
        key, equals, value = item.partition("=")
        if not (equals and value):
            raise ManifestError(f"--slurm: expected key=value,key=value, got {item!r}")
        if key not in known:
            raise ManifestError(f"--slurm: unknown key {key!r}.{suggest(key, known)}")
        yield key, str(_minutes(value)) if key == "time" else value
    if not any(item.startswith("time=") for item in items):
        raise ManifestError("--slurm: time is missing: the longest that one job may take, such as time=24:00:00")


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return what is not done of some jobs and of their needs, those with the same needs together, needs first."""
    found: dict[tuple[str, ...], list[Job]] = {}
    pending = [job for job in with_pending_needs(jobs) if job.status().state is not State.DONE]
    paths = {job.path for job in pending}
    for job in pending:
        needs = tuple(str(need.path) for need in job.needs if need.path in paths)
        found.setdefault(needs, []).append(job)
    return list(found.values())


def preview(jobs: Sequence[Job], folder: Path, options: Mapping[str, Any]) -> str:
    """Return the files that would be given to sbatch, one for each group of jobs; nothing is written."""

    class Preview(_submitit().SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:  # here is no Slurm
            return 1

    texts, numbers = [], {}
    for number, group in enumerate(groups(jobs), start=1):
        executor = Preview(folder)
        of = sorted({numbers[need.path] for need in group[0].needs if need.path in numbers})
        dependency = f"afterok:{':'.join(f'<jobs of group {one}>' for one in of)}" if of else None
        executor.update_parameters(**_parameters(options, dependency))
        if len(group) > 1:
            executor.parameters["map_count"] = len(group)
        numbers |= dict.fromkeys((job.path for job in group), number)
        texts.append(f"# group {number}: {len(group)} jobs, the first one {group[0].label}")
        texts.append(executor._make_submission_file_text(executor._submitit_command_str, ""))
    return "\n".join(texts)


def submit(
    jobs: Sequence[Job],
    words_of: Callable[[Job], Sequence[str]],
    root: Path,
    folder: Path,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> bool:
    """Submit what is not done of some jobs and of their needs; return False if one failed.

    On Slurm this ends when all are submitted. Submitit's local executor knows no dependencies: each group waits for
    its needs, and the end for all.

    Args:
        jobs (Sequence): Those asked for.
        words_of (Callable): The command line that runs one job alone, script first.
        root (Path): The project's root.
        folder (Path): For submitit's own files.
        options (Mapping): Of `parsed_options`.
        say (Callable): Takes a line for each group.
    """
    import cloudpickle  # comes with submitit

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    local = options["executor"] == "local"
    handles: dict[Path, Any] = {}
    failed: set[Path] = set()
    for group in groups(jobs):
        needs = [need.path for need in group[0].needs if need.path in handles or need.path in failed]
        if local:
            failed |= {path for path in needs if path not in failed and handles[path].exception()}
        if failed & set(needs):
            failed |= {job.path for job in group}
            say(f"not submitted, as a need of it failed: {', '.join(job.label for job in group)}")
            continue
        dependency = f"afterok:{':'.join(handles[path].job_id for path in needs)}" if needs else None
        executor = _executor(folder, options, dependency)
        with executor.batch():
            sent = [executor.submit(Worker(words_of(job), root)) for job in group]
        handles |= {job.path: one for job, one in zip(group, sent, strict=True)}
        say(f"submitted {len(group)} jobs, ids {sent[0].job_id} to {sent[-1].job_id}, logs in {folder}")
    if local:
        failed |= {path for path, one in handles.items() if one.exception()}
    return not failed


def _executor(folder: Path, options: Mapping[str, Any], dependency: str | None) -> Any:
    submitit = _submitit()
    if options["executor"] == "local":
        executor = submitit.LocalExecutor(folder)
        executor.update_parameters(timeout_min=options["time"])
        return executor
    try:
        executor = submitit.SlurmExecutor(folder)
    except RuntimeError as error:
        raise ManifestError(f"--slurm: {error} (executor=local runs the jobs on this machine)") from error
    executor.update_parameters(**_parameters(options, dependency))
    return executor


def _parameters(options: Mapping[str, Any], dependency: str | None) -> dict[str, Any]:
    given = {key: value for key, value in options.items() if key != "executor"}
    dependent = {"dependency": dependency, "additional_parameters": LOST_NEED} if dependency else {}
    return {"job_name": "reproduce", **given, **dependent}


def _minutes(text: str) -> int:
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if found:
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return max(1, days * 1440 + hours * 60 + minutes + (seconds > 0))
    if text.isdigit():
        return int(text)
    raise ManifestError(f"--slurm: time is minutes or [days-]hours:minutes:seconds, got {text!r}")


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise ManifestError("--slurm needs the package submitit: pip install submitit") from error
    return submitit
