"""Jobs: the processes that experiments need, one seed of a training or one command each, in the order to run them."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from graphgps_kmip.common.environment import find_config, installed, train_command
from graphgps_kmip.common.file_lock import is_held
from graphgps_kmip.common.near_misses import near_misses, suggest
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Need, Training, as_word
from graphgps_kmip.experiments.manifest import check_value, find, select
from graphgps_kmip.experiments.run_status import (
    ComputeHash,
    State,
    Status,
    command_status,
    run_or_published,
    run_status,
)


@dataclass(frozen=True)
class Place:
    """Where jobs run and where their results go."""

    root: Path  # the working directory, in which every job is started
    out: Path  # root of the results, absolute or below `root`, as command lines shall name it
    compute_hash: ComputeHash
    sample: bool = False  # everything on sample data or small sizes, in a root of its own
    data: Path | None = None  # dataset.dir of all trainings; None: that of their configs
    # Folder that holds main.py and run/: a checkout, or one inside an installed package; None: they are below `root`.
    shipped: Path | None = None

    def script(self, name: str) -> tuple[str, ...]:
        """Return the arguments that start one of our scripts, without the interpreter: some are modules."""
        if name.startswith("run/bench/"):  # they import each other
            package = f"graphgps_kmip.{self.shipped.name}." if self.shipped and installed() else ""
            return ("-m", package + name.removesuffix(".py").replace("/", "."))
        if self.shipped is None:
            return (name,)
        return ("-m", "graphgps_kmip") if name == "main.py" else (str(self.shipped / name),)


@dataclass(frozen=True, eq=False)
class Job:
    """One process to run."""

    label: str  # what it is, for people
    arguments: tuple[str, ...]  # script and arguments, below the project's root, without the interpreter
    path: Path  # folder of its results; no two jobs share one
    key: Callable[[], str]  # what `config_hash` of its record must be
    check: Callable[[], Status]  # its run status, without regard to its needs
    needs: tuple[Job, ...] = ()  # what must be done before
    command: Command | None = None  # what it runs; None: a training

    @property
    def log(self) -> Path:
        """Return the file that takes what it prints."""
        return self.path / "output.log" if self.command else self.path.with_name(f"{self.path.name}.log")

    def lock_file(self, ending: str) -> Path:
        """Return a lock file: ``job.lock`` of a runner of jobs, ``lock`` of a main.py."""
        return self.path.with_name(f".{self.path.name}.{ending}")

    def is_running(self) -> bool:
        """Return whether some process runs it, without changing anything."""
        return any(is_held(self.lock_file(ending)) for ending in ("job.lock", "lock"))

    def status(self) -> Status:
        """Return its run status; a command that is older than something it needs is stale."""
        status = self.check()
        if status.state is State.DONE and any(_is_older(status, need.status()) for need in self.needs):
            return dataclasses.replace(status, state=State.STALE)
        return status


def _is_older(status: Status, need: Status) -> bool:
    times = [either.record.get("finished_at") for either in (status, need)]
    if need.state is not State.DONE or not all(times):
        return False
    ended, needed = (datetime.fromisoformat(time).astimezone() for time in times)  # without a zone: this machine's
    return ended < needed


def training_job(training: Training, seed: int, place: Place, experiment: str = "") -> Job:
    """Return the job that trains one seed."""
    argv = training.arguments(seed, place.out, place.sample)
    argv += ["dataset.dir", as_word(str(place.data))] if place.data else []
    out = place.root / place.out
    return Job(
        label=" ".join([*([experiment] if experiment else []), *training.point.values(), f"seed {seed}"]),
        arguments=(*place.script("main.py"), *argv),
        path=training.run_dir(seed, out, place.sample),
        key=lambda: place.compute_hash(training.arguments(seed, place.out, place.sample)),
        check=lambda: run_status(training, seed, out, place.compute_hash, place.sample),
    )


def command_job(command: Command, experiment: Experiment, place: Place, needs: Sequence[Job] = ()) -> Job:
    """Return the job that runs a command; `needs` in the order of the command's."""
    text = command.sample if place.sample else command.run
    script, *argv = shlex.split(text)
    folders = {"{out}": command.out_dir(experiment.id, place.out, place.sample)}
    for index, need in enumerate(needs):
        below = need.path.is_relative_to(place.root)
        folders[f"{{need{index}}}"] = need.path.relative_to(place.root) if below else need.path
    for placeholder, folder in folders.items():
        argv = [word.replace(placeholder, str(folder)) for word in argv]
    return Job(
        label=f"{command.of or experiment.id} {command.name}",
        arguments=(*place.script(script), *argv),
        path=command.out_dir(experiment.id, place.root / place.out, place.sample),
        key=lambda: text,
        check=lambda: command_status(command, experiment, place.root / place.out, place.sample),
        needs=tuple(needs),
        command=command,
    )


def plan_jobs(
    experiments: Mapping[str, Experiment],
    keys: Sequence[str],
    place: Place,
    only: str = "",
    seeds: int | None = None,
    published: bool = False,
) -> list[Job]:
    """Return the jobs of some experiments: first the trainings, the first seeds of all first, then the commands.

    Args:
        experiments (Mapping): All, by id.
        keys (Sequence): Ids of those to run.
        place (Place): Where.
        only (str, optional): ``axis=value[+value],axis=...``: trainings, or ``command=``: commands. (default: ``""``)
        seeds (int, optional): How many of each training, besides those that commands need. (default: ``None``)
        published (bool, optional): Leave out runs that are published with today's settings. (default: ``False``)

    Raises:
        ManifestError: an id, axis or value that does not exist.
    """
    trainings: list[tuple[int, Job]] = []
    commands: list[Job] = []
    where = (place.root / place.out, place.compute_hash, False, place.sample)
    for key in dict.fromkeys(keys):
        part = narrow_by_option(select(experiments, key), only, seeds)
        trainings += [
            (position, training_job(training, seed, place, key))
            for training in part.trainings
            for position, seed in enumerate(training.seeds)
            if not (published and "published" in run_or_published(part.published, training, seed, *where).record)
        ]
        commands += [_plan_command(experiments, Need(key, command=name), place) for name in part.commands]
    jobs = [job for _, job in sorted(trainings, key=lambda pair: pair[0])] + commands
    return list({job.path: job for job in reversed(jobs)}.values())[::-1]


def _plan_command(experiments: Mapping[str, Experiment], need: Need, place: Place) -> Job:
    command, needs = find(experiments, need), []
    for other in command.needs:
        target = find(experiments, other, need.experiment)
        if isinstance(target, Training):
            needs.append(training_job(target, other.seed, place, other.experiment))
        else:
            needs.append(_plan_command(experiments, other, place))
    return command_job(command, experiments[need.experiment], place, needs)


def narrow_by_option(experiment: Experiment, only: str, seeds: int | None = None) -> Experiment:
    """Return the experiment with what ``--only`` and ``--seeds`` leave of it, see `plan_jobs`."""
    axes: dict[str, tuple[str, ...]] = {}
    for item in only.split(",") if only else ():
        axis, equals, text = item.partition("=")
        if not (axis and equals and text):
            raise ManifestError(f"--only: expected axis=value[+value], got {item!r}")
        names = dict.fromkeys(training.point[axis] for training in experiment.trainings if axis in training.point)
        names |= dict.fromkeys(experiment.commands if axis == "command" else ())
        if not names:
            others = {name for training in experiment.trainings for name in training.point}
            near = suggest(axis, others) if others else " It has no trainings."
            raise ManifestError(f"--only: {experiment.id} has no axis {axis!r}.{near}")
        axes[axis] = _split_values(text, names)
        for value in axes[axis]:
            check_value(value, names, f"--only: {axis} of {experiment.id}")
    commands = axes.pop("command", () if axes else tuple(experiment.commands))
    trainings = []
    for training in experiment.trainings if axes or not only else ():
        if all(training.point.get(axis) in values for axis, values in axes.items()):
            further = range(max(training.seeds) + 1, max(training.seeds) + 1 + (seeds or 0))
            first = (*training.seeds, *further)[: seeds or len(training.seeds)]
            trainings.append(dataclasses.replace(training, seeds=first))
    narrowed = {name: experiment.commands[name] for name in commands}
    return dataclasses.replace(experiment, trainings=tuple(trainings), commands=narrowed)


def _split_values(text: str, names: Container[str]) -> tuple[str, ...]:
    """Split ``GCN+GPS+kMIP`` at the pluses that are not part of a name, the longest names first."""
    parts, values = text.split("+"), []
    while parts:
        size = next((size for size in range(len(parts), 0, -1) if "+".join(parts[:size]) in names), len(parts))
        values.append("+".join(parts[:size]))
        parts = parts[size:]
    return tuple(values)


def list_members(
    experiments: Mapping[str, Experiment], key: str, only: str, seeds: int | None = None
) -> list[Experiment]:
    """Return the experiments that one is made of, or itself, with what ``--only`` and ``--seeds`` leave of it."""
    whole = narrow_by_option(select(experiments, key), only, seeds)
    remaining = {training.folder: training for training in whole.trainings}
    members = []
    for member in (experiments[name] for name in whole.of):
        trainings = tuple(remaining[row.folder] for row in member.trainings if row.folder in remaining)
        members += [dataclasses.replace(member, trainings=trainings)] if trainings else []
    return members or [whole]


def with_needs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, each after all that it needs."""
    ordered: dict[Path, Job] = {}
    for job in jobs:
        for step in [*with_needs(job.needs), job]:
            ordered.setdefault(step.path, step)
    return list(ordered.values())


def with_pending_needs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs, each after what it needs; what only a finished command would need is left out."""
    ordered: dict[Path, Job] = {}
    paths = {job.path for job in jobs}
    pending: set[Path] = set()

    def visit(job: Job) -> None:
        if job.path in ordered:
            return
        done = job.status().state is State.DONE
        for need in job.needs:
            if not done or need.path in paths:
                visit(need)
        ordered[job.path] = job
        if not done or any(need.path in pending for need in job.needs):
            pending.add(job.path)

    for job in jobs:
        visit(job)
    return list(ordered.values())


def check_configs(jobs: Sequence[Job], root: Path) -> None:
    """Refuse trainings among the jobs and their needs whose config does not exist, with near misses."""
    for job in with_needs(jobs):
        config = Path(job.arguments[job.arguments.index("--cfg") + 1]) if job.command is None else None
        if config and not (file := find_config(config, root)).is_file():
            near = near_misses(config.name, (path.name for path in file.parent.glob("*.yaml")))
            raise ManifestError(f"{job.label}: its config {config} does not exist.{near} Write it, or correct `cfg`")


def plan_summary(keys: Sequence[str], jobs: Sequence[Job]) -> str:
    """Return the number of jobs of some experiments by state: ``T-6.1: 36 jobs: 3 done, 33 missing``."""
    counts = Counter(job.status().state for job in jobs)
    states = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    return f"{' '.join(keys)}: {len(jobs)} job{'s' * (len(jobs) != 1)}{f': {states}' if states else ''}"


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """Return the command of each job, to be copied into a shell in the same folder, and its run status."""
    lines = []
    for job in jobs:
        status = job.status()
        running = ", running" if status.state is not State.DONE and job.is_running() else ""
        lines.append(f"{command_line(job)}  # {status.state}{running}{f': {status.error}' if status.error else ''}")
    return lines


def command_line(job: Job) -> str:
    """Return what a job runs, as one types it."""
    if job.arguments[:2] == ("-m", "graphgps_kmip"):  # not from a checkout's root
        return f"{train_command()} {shlex.join(job.arguments[2:])}"
    return shlex.join(["python", *job.arguments])
