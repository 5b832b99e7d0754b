"""The runner of searches: trials and final seeds as jobs, several at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from graphgps_kmip.experiments.book import Run
from graphgps_kmip.experiments.jobs import Job, Place, training_job
from graphgps_kmip.experiments.progress import Progress
from graphgps_kmip.experiments.schedule import Setup, run_jobs
from graphgps_kmip.experiments.search import Runner
from graphgps_kmip.experiments.state import Status


class _Noting(Progress):
    """Progress that tells of each job that is settled."""

    def __init__(self, stream: TextIO | None, parallel: int, tell: Callable[[Job], None]) -> None:
        super().__init__(stream, parallel)
        self.tell = tell

    def settled(self, job: Job, done: bool) -> None:
        """Count a job, and tell of it."""
        super().settled(job, done)
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
