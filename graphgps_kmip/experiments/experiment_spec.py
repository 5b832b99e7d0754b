"""What an experiment is: trainings, commands, and the tables and figures made of what they leave on disk.

The records are read from YAML files (manifest.py). They know where results lie, and nothing of how they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Point = Mapping[str, str]  # axis -> value, such as {"dataset": "CIFAR10", "model": "GCN"}

# Nothing is downloaded, and two epochs show that a training can be run, resumed and tabled.
SAMPLE_SETTINGS = {"dataset.sample": True, "optim.max_epoch": 2, "num_workers": 0}


@dataclass(frozen=True)
class Training:
    """One config and the seeds it is trained with: ``main.py`` once for each seed.

    Args:
        point: where it stands on the axes of its experiment.
        cfg: YAML file, below ``configs/``.
        seeds: one run each.
        settings: what differs from the file, dotted key -> value.
        tag: ends the folder's name, where settings differ from the file's.
        splits: the seed is the index of the split, too (``dataset.split_index``).
    """

    point: Point
    cfg: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""
    splits: bool = False

    @property
    def folder(self) -> str:
        """Folder of its results below the root, ``<folder of the config>/<config>[-tag]``.

        It does not name the experiment: experiments share their runs.
        """
        file = Path(self.cfg)
        return f"{file.parent.name}/{file.stem}{f'-{self.tag}' if self.tag else ''}"

    def words(self, seed: int, out: Path, sample: bool = False) -> list[str]:
        """Return the arguments of ``main.py`` for one seed; results go below ``out``."""
        settings = dict(self.settings)
        settings |= {"dataset.split_index": seed} if self.splits else {}
        settings |= SAMPLE_SETTINGS if sample else {}
        settings |= {"name_tag": self.tag}  # an empty one too: the file may have its own, and `folder` does not see it
        settings |= {"train.auto_resume": True, "out_dir": str(out / Path(self.cfg).parent.name), "seed": seed}
        pairs = [word for key, value in settings.items() for word in (key, as_word(value))]
        return ["--cfg", f"configs/{self.cfg}", *pairs]

    def run_dir(self, seed: int, out: Path, sample: bool = False) -> Path:
        """Return the folder of one seed's run: ``main.py`` keeps samples in a root of their own."""
        parent, name = self.folder.split("/")
        return out / f"{parent}{'-sample' if sample else ''}" / name / str(seed)


@dataclass(frozen=True)
class Need:
    """What must be done before a command: a finished run, or another command.

    Args:
        experiment: its id.
        point: of the training, each axis fixed; empty: `command` is meant.
        seed: of the run.
        command: name of the command.
    """

    experiment: str
    point: Point = field(default_factory=dict)
    seed: int = 0
    command: str = ""


@dataclass(frozen=True)
class Command:
    """A program that is no training: a benchmark, or an analysis of trained models.

    Args:
        name: unique in the experiment; also its folder.
        run: script and arguments, below the project's root, without the interpreter. ``{out}`` is the folder of its
            results, ``{need0}``, ``{need1}``, ... the folders of what it needs.
        sample: the same in seconds, on samples or small sizes, for ``--sample``.
        produces: files below ``{out}`` that exist when it is done.
        needs: in the order of the placeholders.
        of: id of the experiment whose command it is, where several make something of the same results: it runs once.
    """

    name: str
    run: str
    sample: str
    produces: tuple[str, ...]
    needs: tuple[Need, ...] = ()
    of: str = ""

    def out_dir(self, experiment: str, out: Path, sample: bool = False) -> Path:
        """Return the folder of its results: ``<out>/commands[-sample]/<experiment>/<name>``."""
        return out / f"commands{'-sample' if sample else ''}" / (self.of or experiment).replace("/", "-") / self.name


@dataclass(frozen=True)
class TableSpec:
    """Which results fill a table.

    Args:
        id: ``<paper>/<table>`` of the printed tables, whose rows and columns it has; or a table of our own.
        value: of a run: ``score`` (the metric that chose the epoch, on the test split), ``epoch_seconds``, ``hours``,
            ``params``, ``width``, or several of them, which fill the columns ``<column> <value>``; or ``cells``,
            filled by a command.
        row: name of the row of a training, such as ``"k={k}"``.
        column: name of the column of a training.
        where: only trainings at these values, axis -> values.
        source: of `cells`: ``<command>/<file>``, JSON row -> column -> list of values, or a text such as OOM.
        scale: factor on values, 100 for percent.
        columns: of a table of our own: name -> metric, better (higher or lower), unit.
        title: of a table of our own.
    """

    id: str
    value: str = "score"
    row: str = "{model}"
    column: str = "{dataset}"
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""
    scale: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    title: str = ""


@dataclass(frozen=True)
class FigureSpec:
    """How a figure is drawn.

    Args:
        name: of its files.
        draw: name of the drawing function.
        title: what it shows, one line.
        tables: ids of the tables it draws, ours and printed.
        sources: ``<command>/<file>`` of the artefacts it draws.
        options: further arguments of the drawing function.
    """

    name: str
    draw: str
    title: str = ""
    tables: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment: what runs, and what is made of it.

    Args:
        id: such as ``T-6.1``.
        number: in the papers' list of experiments; 0: ours.
        title: one line.
        paper: document and section, or empty.
        makes: the printed tables and figures, in words.
        claim: what the paper says it shows, in one line.
        settings: status of the settings, row name (or ``default``) -> ``exact`` (known to the last), ``ours`` (some
            are not printed), ``none`` (the paper prints no number).
        cost: ``hours`` (all runs), ``card``, ``memory_gb``, ``source`` (where the estimate is from).
        trainings: with all points.
        commands: by name.
        tables: by id.
        figures: by name.
        notes: for those who read the results.
    """

    id: str
    title: str
    number: int = 0
    paper: str = ""
    makes: tuple[str, ...] = ()
    claim: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    trainings: tuple[Training, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    figures: Mapping[str, FigureSpec] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def as_word(value: Any) -> str:
    """Return a setting as one word of a command line, in YAML."""
    if value == "":
        return '""'  # as a shell leaves it: quotes of the other kind would need quoting themselves
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
