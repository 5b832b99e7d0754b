"""Jobs: the processes that experiments need, one seed of a training or one command each, in the order to run them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from graphgps_kmip.common.near_misses import near_misses, suggest
from graphgps_kmip.common.project import find_config, installed
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Need, Training, as_word
from graphgps_kmip.experiments.manifest import find, narrowed, select
from graphgps_kmip.experiments.run_status import HashOf, State, Status, command_status, run_status


@dataclass(frozen=True)
class Place:
    """Where jobs run and where their results go.

    Args:
        root (Path): The working directory, in which every job is started.
        out (Path): Root of the results, absolute or below `root`, as command lines shall name it.
        hash_of (HashOf): See `HashOf`.
        sample (bool, optional): Everything on sample data or small sizes, in a root of its own. (default: ``False``)
        data (Path, optional): ``dataset.dir`` of all trainings; None: that of their configs. (default: ``None``)
        shipped (Path, optional): Folder that holds ``main.py`` and ``run/``: a checkout, or one inside an installed
            package; None: they are below `root`. (default: ``None``)
    """

    root: Path
    out: Path
    hash_of: HashOf
    sample: bool = False
    data: Path | None = None
    shipped: Path | None = None

    def script(self, name: str) -> tuple[str, ...]:
        """Return the words that start one of our scripts, without the interpreter: some are modules."""
        if name.startswith("run/bench/"):  # they import each other
            package = f"graphgps_kmip.{self.shipped.name}." if self.shipped and installed() else ""
            return ("-m", package + name.removesuffix(".py").replace("/", "."))
        if self.shipped is None:
            return (name,)
        return ("-m", "graphgps_kmip") if name == "main.py" else (str(self.shipped / name),)


@dataclass(frozen=True, eq=False)
class Job:
    """One process to run.

    Args:
        label (str): What it is, for people.
        words (tuple): Script and arguments, below the project's root, without the interpreter.
        path (Path): Folder of its results; no two jobs share one.
        key (Callable): What `config_hash` of its record must be.
        check (Callable): Its run status, without regard to its needs.
        group (str): Jobs of one group take about equally long.
        needs (tuple, optional): What must be done before. (default: ``()``)
        command (Command, optional): What it runs; None: a training. (default: ``None``)
    """

    label: str
    words: tuple[str, ...]
    path: Path
    key: Callable[[], str]
    check: Callable[[], Status]
    group: str
    needs: tuple[Job, ...] = ()
    command: Command | None = None

    @property
    def log(self) -> Path:
        """Return the file that takes what it prints."""
        return self.path / "output.log" if self.command else self.path.with_name(f"{self.path.name}.log")

    def status(self) -> Status:
        """Return its run status; a command that is older than something it needs is stale."""
        status = self.check()
        if status.state is State.DONE and any(_older(status, need.status()) for need in self.needs):
            return dataclasses.replace(status, state=State.STALE)
        return status


def training_job(training: Training, seed: int, place: Place, experiment: str = "") -> Job:
    """Return the job that trains one seed."""
    words = training.words(seed, place.out, place.sample)
    words += ["dataset.dir", as_word(str(place.data))] if place.data else []
    out = place.root / place.out
    return Job(
        label=" ".join([*([experiment] if experiment else []), *training.point.values(), f"seed {seed}"]),
        words=(*place.script("main.py"), *words),
        path=training.run_dir(seed, out, place.sample),
        key=lambda: place.hash_of(training.words(seed, place.out, place.sample)),
        check=lambda: run_status(training, seed, out, place.hash_of, place.sample),
        group=training.folder,
    )


def command_job(command: Command, experiment: Experiment, place: Place, needs: Sequence[Job] = ()) -> Job:
    """Return the job that runs a command; `needs` in the order of the command's."""
    text = command.sample if place.sample else command.run
    script, *words = shlex.split(text)
    label = f"{command.of or experiment.id} {command.name}"
    folders = {"{out}": command.out_dir(experiment.id, place.out, place.sample)}
    folders |= {f"{{need{index}}}": _below(need.path, place.root) for index, need in enumerate(needs)}
    return Job(
        label=label,
        words=(*place.script(script), *(_filled(word, folders) for word in words)),
        path=command.out_dir(experiment.id, place.root / place.out, place.sample),
        key=lambda: text,
        check=lambda: command_status(command, experiment, place.root / place.out, place.sample),
        group=label,
        needs=tuple(needs),
        command=command,
    )


def _filled(word: str, folders: Mapping[str, Path]) -> str:
    for placeholder, folder in folders.items():
        word = word.replace(placeholder, str(folder))
    return word


def _below(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else path


def _older(status: Status, need: Status) -> bool:
    times = [one.record.get("finished_at") for one in (status, need)]
    if need.state is not State.DONE or not all(times):
        return False
    began, needed = (datetime.fromisoformat(one).astimezone() for one in times)  # without a zone: this machine's
    return began < needed


def plan_jobs(
    experiments: Mapping[str, Experiment], keys: Sequence[str], place: Place, only: str = "", seeds: int | None = None
) -> list[Job]:
    """Return the jobs of some experiments: first the trainings, the first seeds of all first, then the commands.

    What they need of other experiments is in their `needs` alone.

    Args:
        experiments (Mapping): All, by id.
        keys (Sequence): Ids of those to run.
        place (Place): Where.
        only (str, optional): ``axis=value[+value],axis=...``. An axis keeps the trainings at these values and no
            command; the axis ``command`` keeps the commands of these names and no training, unless another axis is
            given. (default: ``""``)
        seeds (int, optional): How many of each training; a run that a command needs is needed whatever this says.
            (default: ``None``)

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


def parts_of(experiments: Mapping[str, Experiment], key: str, only: str, seeds: int | None = None) -> list[Experiment]:
    """Return the experiments that one is made of, or itself, with what ``--only`` and ``--seeds`` leave of it."""
    whole = kept_of(select(experiments, key), only, seeds)
    kept = {one.folder: one for one in whole.trainings}
    members = [
        dataclasses.replace(one, trainings=tuple(kept[t.folder] for t in one.trainings if t.folder in kept))
        for one in (experiments[name] for name in whole.of)
    ]
    return [one for one in members if one.trainings] or [whole]


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
