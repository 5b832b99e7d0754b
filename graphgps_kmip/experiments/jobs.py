"""What is run as one process: one seed of a training, or a command."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from graphgps_kmip.experiments.experiment_spec import Command, Experiment, Training, as_word
from graphgps_kmip.experiments.run_status import HashOf, State, Status, command_status, run_status


@dataclass(frozen=True)
class Place:
    """Where jobs run and where their results go.

    Args:
        root: the project's root, in which every job is started.
        out: root of the results, absolute or below `root`, as command lines shall name it.
        hash_of: see `HashOf`.
        sample: everything on sample data or small sizes, in a root of its own.
        data: ``dataset.dir`` of all trainings; None: that of their configs.
        shipped: folder inside an installed package that holds the scripts of ``run/``; None: they are below `root`.
    """

    root: Path
    out: Path
    hash_of: HashOf
    sample: bool = False
    data: Path | None = None
    shipped: Path | None = None

    def script(self, name: str) -> tuple[str, ...]:
        """Return the words that start one of our scripts, without the interpreter: ``main.py`` is a module, too."""
        if self.shipped is None:
            return (name,)
        return ("-m", "graphgps_kmip") if name == "main.py" else (str(self.shipped / name),)


@dataclass(frozen=True, eq=False)
class Job:
    """One process to run.

    Args:
        label: what it is, for people.
        words: script and arguments, below the project's root, without the interpreter.
        path: folder of its results; no two jobs share one.
        key: what `config_hash` of its record must be.
        check: how far it is, needs apart.
        group: jobs of one group take about equally long.
        needs: what must be done before.
        command: what it runs; None: a training.
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
        """Return how far it is; a command that is older than something it needs is stale."""
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
