"""From experiments to jobs, in the order in which they can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphgps_kmip.common.near_misses import near_misses, suggest
from graphgps_kmip.common.project import find_config
from graphgps_kmip.experiments.experiment_spec import Experiment, Need, Training
from graphgps_kmip.experiments.jobs import Job, Place, command_job, training_job
from graphgps_kmip.experiments.manifest import ManifestError, find, narrowed, select
from graphgps_kmip.experiments.run_status import State


def plan_jobs(
    experiments: Mapping[str, Experiment],
    keys: Sequence[str],
    place: Place,
    only: str = "",
    seeds: int | None = None,
) -> list[Job]:
    """Return the jobs of some experiments: first the trainings, the first seeds of all first, then the commands.

    What they need of other experiments is in their `needs` alone.

    Args:
        experiments: all, by id.
        keys: ids of those to run.
        place: where.
        only: ``axis=value[+value],axis=...``. An axis keeps the trainings at these values and no command; the axis
            ``command`` keeps the commands of these names and no training, unless another axis is given.
        seeds: how many of each training; a run that a command needs is needed whatever this says.

    Raises:
        ManifestError: an id, axis or value that does not exist, or commands that need each other.
    """
    trainings: list[tuple[int, Job]] = []
    commands: list[Job] = []
    for key in dict.fromkeys(keys):
        kept = kept_of(select(experiments, key), only, seeds)
        trainings += [
            (position, training_job(one, seed, place, key))
            for one in kept.trainings
            for position, seed in enumerate(one.seeds)
        ]
        commands += [_command(experiments, Need(key, command=name), place, ()) for name in kept.commands]
    jobs = [job for _, job in sorted(trainings, key=lambda pair: pair[0])] + commands
    return list({job.path: job for job in reversed(jobs)}.values())[::-1]


def kept_of(experiment: Experiment, only: str, seeds: int | None = None) -> Experiment:
    """Return the experiment with what ``--only`` and ``--seeds`` leave of it, see `plan_jobs`."""
    wanted = _parsed(experiment, only)
    names = wanted.pop("command", None)
    if names is None:
        names = () if wanted else tuple(experiment.commands)
    elif not wanted:
        experiment = dataclasses.replace(experiment, trainings=())
    commands = {name: experiment.commands[name] for name in names}
    return dataclasses.replace(narrowed(experiment, wanted, seeds), commands=commands)


def with_needs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, each after all that it needs."""
    found: dict[Path, Job] = {}
    for job in jobs:
        found |= {one.path: one for one in [*with_needs(job.needs), job] if one.path not in found}
    return list(found.values())


def with_pending_needs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, each after what it needs; what only a finished command would need is left out."""
    found: dict[Path, Job] = {}
    asked = {job.path for job in jobs}
    todo: set[Path] = set()

    def visit(job: Job) -> None:
        if job.path in found:
            return
        done = job.status().state is State.DONE
        for need in job.needs:
            if not done or need.path in asked:
                visit(need)
        found[job.path] = job
        if not done or any(need.path in todo for need in job.needs):
            todo.add(job.path)

    for job in jobs:
        visit(job)
    return list(found.values())


def check_configs(jobs: Sequence[Job], root: Path) -> None:
    """Check that the config of every training among the jobs and their needs exists.

    Args:
        jobs: of `plan_jobs`.
        root: folder in which they are started.

    Raises:
        ManifestError: one does not, with near misses.
    """
    for job in with_needs(jobs):
        if job.command is not None:
            continue
        given = Path(job.words[job.words.index("--cfg") + 1])
        file = find_config(given, root)
        if not file.is_file():
            near = near_misses(given.name, (path.name for path in file.parent.glob("*.yaml")))
            raise ManifestError(f"{job.label}: its config {given} does not exist.{near} Write it, or correct `cfg`")


def _command(experiments: Mapping[str, Experiment], need: Need, place: Place, above: tuple[str, ...]) -> Job:
    name = f"{need.experiment} {need.command}"
    if name in above:
        raise ManifestError(f"commands need each other: {' -> '.join([*above, name])}")
    command = find(experiments, need)
    needs = []
    for one in command.needs:
        found = find(experiments, one, need.experiment)
        if isinstance(found, Training):
            needs.append(training_job(found, one.seed, place, one.experiment))
        else:
            needs.append(_command(experiments, one, place, (*above, name)))
    return command_job(command, experiments[need.experiment], place, needs)


def _parsed(experiment: Experiment, only: str) -> dict[str, tuple[str, ...]]:
    parsed = {}
    for item in only.split(",") if only else ():
        axis, equals, text = item.partition("=")
        if not (axis and equals and text):
            raise ManifestError(f"--only: expected axis=value[+value], got {item!r}")
        known = {training.point[axis] for training in experiment.trainings if axis in training.point}
        known |= set(experiment.commands) if axis == "command" else set()
        parsed[axis] = _values(text, known)
        for name in parsed[axis] if axis == "command" else ():
            if name not in experiment.commands:
                near = suggest(name, experiment.commands) if experiment.commands else " It has none."
                raise ManifestError(f"--only: {experiment.id} has no command {name!r}.{near}")
    return parsed


def _values(text: str, known: set[str]) -> tuple[str, ...]:
    """Split ``GCN+GPS+kMIP`` at the pluses that are not part of a name, the longest names first."""
    parts, values = text.split("+"), []
    while parts:
        size = next((size for size in range(len(parts), 0, -1) if "+".join(parts[:size]) in known), len(parts))
        values.append("+".join(parts[:size]))
        parts = parts[size:]
    return tuple(values)
