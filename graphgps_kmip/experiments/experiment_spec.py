"""Specification of an experiment: trainings, commands, and the tables and figures made of their results on disk.

Read from YAML files by `manifest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Point = Mapping[str, str]  # axis -> value, such as {"dataset": "CIFAR10", "model": "GCN"}

# Nothing is downloaded, and two epochs of few graphs show that a training can be run, resumed and tabled. A second
# thread gains nothing there, and waits where other work runs on the same cores.
SAMPLE_SETTINGS = {
    "dataset.sample": True,
    "dataset.sample_graphs": 30,
    "optim.max_epoch": 2,
    "num_workers": 0,
    "num_threads": 1,
}


@dataclass(frozen=True)
class Training:
    """One config and the seeds it is trained with: ``main.py`` once for each seed."""

    point: Point  # its values on the axes of its experiment
    cfg: str  # YAML file below configs/
    seeds: tuple[int, ...]  # one run each
    settings: Mapping[str, Any] = field(default_factory=dict)  # what differs from the file, dotted key -> value
    tag: str = ""  # ends the folder's name, where settings differ from the file's
    splits: bool = False  # the seed is the index of the split, too (dataset.split_index)
    seeded: tuple[str, ...] = ()  # further keys whose value is the seed, such as spexphormer.estimator_seed
    like: Point = field(default_factory=dict)  # of a row that was added to a table, the point whose ranges it has
    factors: Mapping[str, Any] = field(default_factory=dict)  # of such a row, its own ranges next to those

    @property
    def folder(self) -> str:
        """Folder of its results below the root, ``<folder of the config>/<config>[-tag]``; experiments share it."""
        file = Path(self.cfg)
        return f"{file.parent.name}/{file.stem}{f'-{self.tag}' if self.tag else ''}"

    def arguments(self, seed: int, out: Path, sample: bool = False) -> list[str]:
        """Return the arguments of ``main.py`` for one seed; results go below ``out``."""
        settings = dict(self.settings)
        settings |= {"dataset.split_index": seed} if self.splits else {}
        settings |= dict.fromkeys(self.seeded, seed)
        settings |= SAMPLE_SETTINGS if sample else {}
        settings |= {"name_tag": self.tag}  # an empty one too: the file may have its own, and `folder` does not see it
        settings |= {"train.auto_resume": True, "out_dir": str(out / Path(self.cfg).parent.name), "seed": seed}
        pairs = [text for key, value in settings.items() for text in (key, as_word(value))]
        return ["--cfg", f"configs/{self.cfg}", *pairs]

    def run_dir(self, seed: int, out: Path, sample: bool = False) -> Path:
        """Return the folder of one seed's run: ``main.py`` keeps samples in a root of their own."""
        parent, name = self.folder.split("/")
        return out / f"{parent}{'-sample' if sample else ''}" / name / str(seed)


@dataclass(frozen=True)
class Need:
    """What must be done before a command: a finished run of an experiment, or another command."""

    experiment: str
    point: Point = field(default_factory=dict)  # of the training, each axis fixed; empty: `command` is meant
    seed: int = 0  # of the run
    command: str = ""


@dataclass(frozen=True)
class Command:
    """A program that is no training: a benchmark, or an analysis of trained models."""

    name: str  # unique in the experiment; also its folder
    run: str  # script and arguments, without the interpreter; {out}: its folder, {need0}, ...: those of its needs
    sample: str  # the same in seconds, on samples or small sizes, for --sample
    produces: tuple[str, ...]  # files below {out} that exist when it is done
    needs: tuple[Need, ...] = ()  # in the order of the placeholders
    of: str = ""  # id of the experiment whose command it is, where several share its results: it runs once

    def out_dir(self, experiment: str, out: Path, sample: bool = False) -> Path:
        """Return the folder of its results: ``<out>/commands[-sample]/<experiment>/<name>``."""
        return out / f"commands{'-sample' if sample else ''}" / (self.of or experiment).replace("/", "-") / self.name


@dataclass(frozen=True)
class TableSpec:
    """Which results fill a table."""

    id: str  # <paper>/<table> of the printed tables, whose rows and columns it has; or a table of our own
    # Of a run: score (the metric that chose the epoch, on the test split), epoch_seconds, hours, params, width, or
    # several of them, which fill the columns "<column> <value>"; or cells, filled by a command.
    value: str = "score"
    row: str = "{model}"  # name of the row of a training, such as "k={k}"
    column: str = "{dataset}"  # name of the column of a training
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # only trainings at these values of axes
    source: str = ""  # of cells: <command>/<file>, JSON row -> column -> list of values, or a text such as OOM
    scale: Mapping[str, float] = field(default_factory=dict)  # factor on values, 100 for percent
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of our own table: metric, better, unit
    title: str = ""  # of our own table
    claims: tuple[Mapping[str, Any], ...] = ()  # of the paper, checked on ours, see report/table_notes.py
    compare: tuple[tuple[str, str], ...] = ()  # two rows each, whose difference a note gives with its interval


@dataclass(frozen=True)
class FigureSpec:
    """How a figure is drawn."""

    name: str  # of its files
    draw: str  # name of the drawing function
    title: str = ""  # what it shows, one line
    tables: tuple[str, ...] = ()  # ids of the tables it draws, ours and printed
    sources: tuple[str, ...] = ()  # <command>/<file> of the artefacts it draws
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the drawing function


@dataclass(frozen=True)
class Experiment:
    """One experiment: what runs, and what is made of it."""

    id: str  # such as T-6.1
    title: str  # one line
    number: int = 0  # in the papers' list of experiments; 0: ours
    paper: str = ""  # document and section
    makes: tuple[str, ...] = ()  # the printed tables and figures, by name
    claim: str = ""  # what the paper says it shows, in one line
    # Status of the settings, row name (or "default") -> exact (all of them are printed), ours (some are not printed),
    # none (the paper prints no number), quoted (nothing runs here; rows that no training fills need not say so).
    settings: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)  # hours (all runs), card, memory_gb, source of the estimate
    # Ids of the experiments that it is made of, with their trainings and tables; its own are figures alone.
    of: tuple[str, ...] = ()
    trainings: tuple[Training, ...] = ()  # with all points
    commands: Mapping[str, Command] = field(default_factory=dict)  # by name
    tables: Mapping[str, TableSpec] = field(default_factory=dict)  # by id
    figures: Mapping[str, FigureSpec] = field(default_factory=dict)  # by name
    notes: tuple[str, ...] = ()  # for those who read the results
    # Not in files. Of models that are tuned alike: folder of a training -> record of the search that chose its settings
    # (`with_choices`); None: the settings are the manifest's. Folder of a training -> its published runs.
    searched: Mapping[str, Any] | None = None
    published: Mapping[str, Any] = field(default_factory=dict)


def as_word(value: Any) -> str:
    """Return a setting as one word of a command line, in YAML."""
    if value == "":
        return '""'  # as a shell leaves it: quotes of the other kind would need quoting themselves
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
