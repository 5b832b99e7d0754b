"""Specification of an experiment: trainings, commands, and the tables and figures made of their results on disk.

Read from YAML files by `manifest`. A specification knows the folders of its results, and nothing of how they are made.
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
    """One config and the seeds it is trained with: ``main.py`` once for each seed.

    Args:
        point (Point): Its values on the axes of its experiment.
        cfg (str): YAML file, below ``configs/``.
        seeds (tuple): One run each.
        settings (Mapping, optional): What differs from the file, dotted key -> value. (default: ``{}``)
        tag (str, optional): Ends the folder's name, where settings differ from the file's. (default: ``""``)
        splits (bool, optional): The seed is the index of the split, too (``dataset.split_index``). (default: ``False``)
        seeded (tuple, optional): Further keys whose value is the seed, such as ``spexphormer.estimator_seed`` where
            each run has an estimator of its own. (default: ``()``)
        like (Point, optional): Of a row that was added to a table, the point whose ranges it has. (default: ``{}``)
        factors (Mapping, optional): Of such a row, ranges of its own beside those. (default: ``{}``)
    """

    point: Point
    cfg: str
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    tag: str = ""
    splits: bool = False
    seeded: tuple[str, ...] = ()
    like: Point = field(default_factory=dict)
    factors: Mapping[str, Any] = field(default_factory=dict)

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
        settings |= dict.fromkeys(self.seeded, seed)
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
        experiment (str): Its id.
        point (Point, optional): Of the training, each axis fixed; empty: `command` is meant. (default: ``{}``)
        seed (int, optional): Of the run. (default: ``0``)
        command (str, optional): Name of the command. (default: ``""``)
    """

    experiment: str
    point: Point = field(default_factory=dict)
    seed: int = 0
    command: str = ""


@dataclass(frozen=True)
class Command:
    """A program that is no training: a benchmark, or an analysis of trained models.

    Args:
        name (str): Unique in the experiment; also its folder.
        run (str): Script and arguments, below the project's root, without the interpreter. ``{out}`` is the folder of
            its results, ``{need0}``, ``{need1}``, ... the folders of what it needs.
        sample (str): The same in seconds, on samples or small sizes, for ``--sample``.
        produces (tuple): Files below ``{out}`` that exist when it is done.
        needs (tuple, optional): In the order of the placeholders. (default: ``()``)
        of (str, optional): Id of the experiment whose command it is, where several make something of the same results:
            it runs once. (default: ``""``)
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
        id (str): ``<paper>/<table>`` of the printed tables, whose rows and columns it has; or a table of our own.
        value (str, optional): Of a run: ``score`` (the metric that chose the epoch, on the test split),
            ``epoch_seconds``, ``hours``, ``params``, ``width``, or several of them, which fill the columns ``<column>
            <value>``; or ``cells``, filled by a command. (default: ``"score"``)
        row (str, optional): Name of the row of a training, such as ``"k={k}"``. (default: ``"{model}"``)
        column (str, optional): Name of the column of a training. (default: ``"{dataset}"``)
        where (Mapping, optional): Only trainings at these values, axis -> values. (default: ``{}``)
        source (str, optional): Of `cells`: ``<command>/<file>``, JSON row -> column -> list of values, or a text such
            as OOM. (default: ``""``)
        scale (Mapping, optional): Factor on values, 100 for percent. (default: ``{}``)
        columns (Mapping, optional): Of a table of our own: name -> metric, better (higher or lower), unit. (default:
            ``{}``)
        title (str, optional): Of a table of our own. (default: ``""``)
        claims (tuple, optional): What the paper says of the table's rows, checked on ours: ``check`` and its options,
            see ``graphgps_kmip/report/table_notes.py``. (default: ``()``)
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
    claims: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class FigureSpec:
    """How a figure is drawn.

    Args:
        name (str): Of its files.
        draw (str): Name of the drawing function.
        title (str, optional): What it shows, one line. (default: ``""``)
        tables (tuple, optional): Ids of the tables it draws, ours and printed. (default: ``()``)
        sources (tuple, optional): ``<command>/<file>`` of the artefacts it draws. (default: ``()``)
        options (Mapping, optional): Further arguments of the drawing function. (default: ``{}``)
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
        id (str): Such as ``T-6.1``.
        number (int, optional): In the papers' list of experiments; 0: ours. (default: ``0``)
        title (str): One line.
        paper (str, optional): Document and section, or empty. (default: ``""``)
        makes (tuple, optional): The printed tables and figures, in words. (default: ``()``)
        claim (str, optional): What the paper says it shows, in one line. (default: ``""``)
        settings (Mapping, optional): Status of the settings, row name (or ``default``) -> ``exact`` (known to the
            last), ``ours`` (some are not printed), ``none`` (the paper prints no number), ``quoted`` (nothing runs
            here; rows that no training fills need not say so). (default: ``{}``)
        cost (Mapping, optional): ``hours`` (all runs), ``card``, ``memory_gb``, ``source`` (where the estimate is
            from). (default: ``{}``)
        of (tuple, optional): Ids of the experiments that it is made of, whose trainings and tables are its own. It has
            figures alone, of these tables. (default: ``()``)
        trainings (tuple, optional): With all points. (default: ``()``)
        commands (Mapping, optional): By name. (default: ``{}``)
        tables (Mapping, optional): By id. (default: ``{}``)
        figures (Mapping, optional): By name. (default: ``{}``)
        notes (tuple, optional): For those who read the results. (default: ``()``)
        searched (Mapping, optional): Of models that are tuned alike: folder of a training -> record of the search that
            chose its settings, see `with_choices`; not in files. (default: ``None``, the settings are the manifest's)
        published (Mapping, optional): Folder of a training -> its published runs, see `published_results`; not in the
            files of experiments. (default: ``{}``)
    """

    id: str
    title: str
    number: int = 0
    paper: str = ""
    makes: tuple[str, ...] = ()
    claim: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    of: tuple[str, ...] = ()
    trainings: tuple[Training, ...] = ()
    commands: Mapping[str, Command] = field(default_factory=dict)
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    figures: Mapping[str, FigureSpec] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    searched: Mapping[str, Any] | None = None
    published: Mapping[str, Any] = field(default_factory=dict)


def as_word(value: Any) -> str:
    """Return a setting as one word of a command line, in YAML."""
    if value == "":
        return '""'  # as a shell leaves it: quotes of the other kind would need quoting themselves
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n...\n").strip()
