"""The three ways to run jobs: on this machine, on a cluster, and as a search of hyper-parameters."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from graphgps_kmip.experiments import slurm
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import Options, Run, Runner, run_search
from graphgps_kmip.experiments.job_runner import Outcome, Setup, run_jobs
from graphgps_kmip.experiments.jobs import Job, Place, training_job
from graphgps_kmip.experiments.listing import summary
from graphgps_kmip.experiments.progress import Progress
from graphgps_kmip.experiments.run_status import Status
from graphgps_kmip.experiments.search_space import load_ranges


def run_here(jobs: Sequence[Job], setup: Setup) -> int:
    """Run what is missing on this machine; return the exit code."""
    results = run_jobs(jobs, setup, Progress(sys.stdout, setup.parallel))
    print(summary(results))
    return 0 if all(one.outcome is Outcome.DONE for one in results) else 1


def run_on_slurm(jobs: Sequence[Job], place: Place, args: argparse.Namespace) -> int:
    """Submit what is missing, each job as a ``run --job`` of its own, or show what would be; return the exit code."""
    out = place.root / place.out
    options, folder = slurm.parsed_options(args.slurm), out / "slurm" / "%j"
    if args.slurm_dry_run:
        print(slurm.preview(jobs, folder, options))
        return 0
    flags = ["--out", str(place.out), *(["--sample"] if place.sample else []), *(["--retry"] if args.retry else [])]
    flags += ["--data", str(place.data)] if place.data else []
    flags += ["--seeds", str(args.seeds)] if args.seeds else []

    def words_of(job: Job) -> list[str]:
        script = ["run/reproduce.py"] if place.shipped is None else ["-m", "graphgps_kmip.reproduce"]
        return [*script, "run", *args.ids, "--job", str(job.path.relative_to(out)), *flags]

    return 0 if slurm.submit(jobs, words_of, place.root, folder, options, say=print) else 1


def run_searches(
    experiments: Sequence[Experiment], engine: str, trials: int, ranges: Path, place: Place, setup: Setup
) -> int:
    """Search the hyper-parameters of experiments; return the exit code.

    Args:
        experiments: narrowed to what is to be searched.
        engine: ``linear`` or ``tpe``.
        trials: of the engine tpe.
        ranges: folder of the ranges.
        place: where trainings run.
        setup: how.
    """
    options = Options(trials, setup.parallel, place.sample, place.out)
    runner = runner_of(place, setup, sys.stdout)
    finished = True
    for experiment in experiments:
        for outcome in run_search(experiment, engine, load_ranges(ranges), runner, place.root / place.out, options):
            print(f"{outcome.line}\n  trial log: {outcome.log}")
            finished &= outcome.finished
    return 0 if finished else 1


class _Noting(Progress):
    """Progress that tells of each job that is settled."""

    def __init__(self, stream: TextIO | None, parallel: int, tell: Callable[[Job], None]) -> None:
        super().__init__(stream, parallel)
        self.tell = tell

    def settled(self, job: Job, done: bool, took: float = 0.0) -> None:
        """Count a job, and tell of it."""
        super().settled(job, done, took)
        self.tell(job)


def runner_of(place: Place, setup: Setup, stream: TextIO | None = None) -> Runner:
    """Return what runs the trainings of a search: those that are not finished, as jobs of this machine.

    Args:
        place: where they run and where their results go.
        setup: how they are run.
        stream: shows their progress; None: nothing is shown.
    """

    def run(runs: list[Run], ended: Callable[[Run, Status], None]) -> list[Status]:
        jobs = [training_job(training, seed, place) for training, seed in runs]
        run_at = {job.path: run for job, run in zip(jobs, runs, strict=True)}
        progress = _Noting(stream, setup.parallel, lambda job: ended(run_at[job.path], job.status()))
        run_jobs(jobs, setup, progress)
        return [job.status() for job in jobs]

    return run
