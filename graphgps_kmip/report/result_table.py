"""Result tables: values of our finished runs next to a paper's printed numbers, read from results on disk.

`table_formats` writes it as Markdown, LaTeX, CSV or HTML.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import read_artefact
from graphgps_kmip.common.environment import find_config
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import InputError, ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord
from graphgps_kmip.experiments.manifest import PrintedCell, PrintedTable
from graphgps_kmip.experiments.run_status import ComputeHash, State, Status, command_status, run_or_published
from graphgps_kmip.report.welch import Difference, welch
from graphgps_kmip.results.run_record import read_run_config, read_stats

Place = tuple[str, str]  # row and column
SAMPLE_NOTE = "SAMPLE: short runs on small synthetic data, which show that everything runs. No number here is a result."


@dataclass(frozen=True)
class Ours:
    """Our side of a cell."""

    values: tuple[float, ...] = ()  # of the finished runs, in the unit of the column
    seeds: tuple[int, ...] = ()  # of the finished runs, one for each value; empty for the values of a command
    planned: int = 0  # how many runs the experiment asks for
    unfinished: Mapping[Any, Status] = field(default_factory=dict)  # seed (or the command's name) -> of the others
    sources: Mapping[Any, Status] = field(default_factory=dict)  # likewise, of what was read, for provenance
    text: str = ""  # what a command says in place of numbers, such as OOM
    alone: bool = False  # the values are those of one run that had the machine to itself (run --timing)
    overlap: float | None = 0.0  # n_test / n_train where each seed has a split of its own; None: sizes not known
    published: bool = False  # the runs were not made here (see `run_status`)

    @property
    def n(self) -> int:
        """Return the number of finished runs."""
        return len(self.values)

    @property
    def complete(self) -> bool:
        """Return whether every run that is planned is finished."""
        return 0 < self.n == self.planned

    @property
    def mean(self) -> float | None:
        """Return the mean over the finished runs; None without one."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Return the sample standard deviation (n - 1); None below two runs, NaN where a value is."""
        if self.n < 2:
            return None
        return statistics.stdev(self.values) if all(map(math.isfinite, self.values)) else math.nan

    def shown(self, partial: bool) -> bool:
        """Return whether a table shows a mean: of all runs, or with `partial` of those that are finished."""
        return self.complete or (partial and bool(self.values))


@dataclass(frozen=True)
class Cell:
    """One cell: ours, and what the paper prints; None where there is none of it."""

    ours: Ours | None = None
    printed: PrintedCell | None = None

    @property
    def our_mean(self) -> float | None:
        """Return the mean of our values; None without one."""
        return self.ours and self.ours.mean

    @property
    def our_spread(self) -> float:
        """Return the sample standard deviation of our values; 0 for fewer than two."""
        return (self.ours and self.ours.std) or 0.0

    @property
    def paper_mean(self) -> float | None:
        """Return the printed mean; None where no number is printed."""
        return self.printed and self.printed.mean

    def difference(self, partial: bool) -> Difference | None:
        """Return ours - printed where both are numbers, and ours is shown."""
        if self.ours is None or self.printed is None or self.printed.mean is None or not self.ours.shown(partial):
            return None
        return welch(self.ours, self.printed, self.ours.overlap)


@dataclass(frozen=True)
class ResultTable:
    """One table of results."""

    id: str  # <paper>/<table>, or that of a table of our own
    title: str  # one line
    experiment: str  # its id
    columns: Mapping[str, Mapping[str, Any]]  # name -> metric, better (higher, lower or None), unit
    rows: Mapping[str, Mapping[str, Cell]]  # row -> column -> cell, every row with every column
    settings: Mapping[str, str]  # row -> exact, ours or none (see `Experiment`), quoted where no run of ours fills it
    sample: bool = False  # made of runs on sample data, which are no results; printed numbers are left out
    printed_hardware: str = ""  # what the paper used
    notes: tuple[str, ...] = ()  # of the printed table and the experiment
    searches: Mapping[str, SearchRecord] = field(default_factory=dict)  # row -> of the search that chose its settings
    claims: tuple[Mapping[str, Any], ...] = ()  # of the paper, to be checked on our rows
    compare: tuple[tuple[str, str], ...] = ()  # rows whose differences the notes give

    def places(self) -> Iterator[tuple[str, str, Cell]]:
        """Yield row, column and cell of each cell."""
        return ((row, column, cell) for row, cells in self.rows.items() for column, cell in cells.items())


def experiment_tables(
    experiment: Experiment,
    experiments: Mapping[str, Experiment],
    printed: Mapping[str, PrintedTable],
    out: Path,
    compute_hash: ComputeHash,
    sample: bool = False,
    published: bool = False,
) -> dict[str, ResultTable]:
    """Return id -> table of an experiment, or of those in `experiments` that it is made of; see `build_table`."""
    return {
        spec.id: build_table(owner, spec, printed, out, compute_hash, sample, published)
        for owner in ([experiments[key] for key in experiment.of] or [experiment])
        for spec in owner.tables.values()
    }


def build_table(
    experiment: Experiment,
    spec: TableSpec,
    printed: Mapping[str, PrintedTable],
    out: Path,
    compute_hash: ComputeHash,
    sample: bool = False,
    published: bool = False,
) -> ResultTable:
    """Return a table of the results on disk, with every row and column of the printed table of the same id.

    With `published`, published runs fill the rows of which none is finished here. A sample has no printed numbers.

    Raises:
        ResultsError: the spec does not fit the results, or a finished run does not hold the value.
    """
    where, paper = f"{experiment.id}, {spec.id}:", printed.get(spec.id)
    if paper is None and not spec.columns:
        raise ResultsError(f"{experiment.id}: no printed table {spec.id!r}.{suggest(spec.id, printed)}")
    columns = paper.columns if paper else spec.columns
    rows = dict.fromkeys(paper.rows if paper else ())
    _check_names(spec.scale, {*columns, "default"}, f"{where} scale of column")
    if spec.value == "cells":  # its rows are sizes or the like, which do not compete
        columns = {name: {"ranked": False, **facts} for name, facts in columns.items()}
        places = [(row, column) for row in rows if _settings(experiment, row) != "quoted" for column in columns]
        ours = dict(_command_cells(experiment, spec, places, out, sample))
    else:
        ours = dict(_training_cells(experiment, spec, out, compute_hash, sample, published))
    _check_names([column for _, column in ours], columns, f"{where} column")
    if paper and spec.value != "cells":  # a benchmark may go on to sizes that the paper left out
        added = {row for training in experiment.trainings if training.like for row in training.point.values()}
        _check_names([row for row, _ in ours if row not in added], rows, f"{where} row")
    run = dict.fromkeys(row for row, _ in ours)
    rows |= run
    _check_names([row for pair in spec.compare for row in pair], rows, f"{where} compare: row")
    printed_rows = {} if sample or paper is None else paper.rows
    searched = experiment.searched or {}
    row_names = {
        training.folder: _place(spec, training, where)[0]
        for training in experiment.trainings
        if training.folder in searched
    }
    hidden = {}
    if experiment.published and not (published or sample or spec.value == "cells"):
        cells = _training_cells(experiment, spec, out, compute_hash, sample, published=True)
        hidden = dict.fromkeys(row for (row, _), side in cells if side.published)
    hidden_note = [f"published runs, which --published shows: {', '.join(hidden)}."] if hidden else []
    return ResultTable(
        id=spec.id,
        title=paper.title if paper else spec.title or experiment.title,
        experiment=experiment.id,
        columns=columns,
        rows={
            row: {column: Cell(ours.get((row, column)), printed_rows.get(row, {}).get(column)) for column in columns}
            for row in rows
        },
        settings={row: _settings(experiment, row) if row in run else "quoted" for row in rows},
        sample=sample,
        printed_hardware=paper.hardware if printed_rows else "",
        notes=(*([SAMPLE_NOTE] if sample else hidden_note), *(paper.notes if printed_rows else ()), *experiment.notes),
        searches={row_names[folder]: searched[folder] for folder in row_names},
        claims=spec.claims,
        compare=tuple((first, second) for first, second in spec.compare),
    )


def _settings(experiment: Experiment, row: str) -> str:
    status = experiment.settings.get(row, experiment.settings.get("default"))
    if status is None:
        raise ResultsError(f"{experiment.id} has no settings for row {row!r}: add `settings: {{default: ...}}`")
    return status


def _check_names(names: Any, allowed: Any, where: str) -> None:
    for name in names:
        if name not in allowed:
            raise ResultsError(f"{where} {name!r} is not in the table.{suggest(name, allowed)}")


def _place(spec: TableSpec, training: Training, where: str) -> Place:
    try:
        return spec.row.format(**training.point), spec.column.format(**training.point)
    except KeyError as error:
        raise ResultsError(
            f"{where} {training.folder} has no axis {error}.{suggest(error.args[0], training.point)}"
        ) from error


def _check_sample(status: Status, sample: bool) -> Status:
    if status.state is State.DONE and bool(status.record.get("sample")) != sample:
        kinds = ("a result", "a table of samples") if sample else ("a run on sample data", "a table of results")
        raise ResultsError(f"{status.path} is {kinds[0]}, which {kinds[1]} never shows: move it away")
    return status


def _is_done(status: Status) -> bool:
    return status.state is State.DONE


def _factor(spec: TableSpec, column: str) -> float:
    return spec.scale.get(column, spec.scale.get("default", 1))


def _training_cells(
    experiment: Experiment, spec: TableSpec, out: Path, compute_hash: ComputeHash, sample: bool, published: bool
) -> Iterator[tuple[Place, Ours]]:
    """Yield place and cell of each training; of several kinds of values, each has columns ``<column> <kind>``."""
    where = f"{experiment.id}, {spec.id}:"
    kinds = spec.value.split()
    for kind in kinds:
        if kind not in VALUES and kind != TRIALS:
            raise ResultsError(f"{where} unknown value {kind!r}.{suggest(kind, [*VALUES, TRIALS, 'cells'])}")
    filled: dict[Place, str] = {}
    metrics: dict[str, str] = {}
    for training in experiment.trainings:
        if not all(training.point.get(axis) in map(str, values) for axis, values in spec.where.items()):
            continue
        row, column = place = _place(spec, training, where)
        if place in filled:
            raise ResultsError(f"{where} {filled[place]} and {training.folder} fill {row}, {column}: choose by `where`")
        filled[place] = training.folder
        runs, timed = _read_runs(training, {}, out, compute_hash, sample)
        elsewhere = published and not sample and not any(map(_is_done, runs.values()))
        if elsewhere:
            runs, timed = _read_runs(training, experiment.published, out, compute_hash)
        done, timed = ({seed: run for seed, run in part.items() if _is_done(run)} for part in (runs, timed))
        for run in done.values() if "score" in kinds else ():
            metric = str(run.record.get("metric_best"))
            if metrics.setdefault(column, metric) != metric:
                raise ResultsError(f"{where} column {column} mixes the metrics {metrics[column]} and {metric}")
        search = (experiment.searched or {}).get(training.folder)
        for kind in kinds:
            name = column if len(kinds) == 1 else f"{column} {kind}"
            if kind == TRIALS:
                yield (row, name), Ours(planned=1, text=f"{search.trials}" if search else "not searched")
            else:
                alone = kind in COSTS and bool(timed)
                sources = timed if alone else done
                values = tuple(run_value(kind, run) * _factor(spec, name) for run in sources.values())
                planned = 1 if alone else len(runs)
                unfinished = {} if alone else {seed: run for seed, run in runs.items() if seed not in done}
                overlap = training_overlap(training) if kind == "score" and done else 0.0
                facts = {"alone": alone, "overlap": overlap, "published": elsewhere and bool(done)}
                yield (row, name), Ours(values, tuple(sources), planned, unfinished, sources, **facts)


def _read_runs(
    training: Training, published: Mapping[Any, Status], out: Path, compute_hash: ComputeHash, sample: bool = False
) -> Iterator[dict[int, Status]]:
    """Yield seed -> status of a training's runs, and of the run that had the machine to itself."""
    for timed, seeds in ((False, training.seeds), (True, training.seeds[:1])):
        runs = {seed: run_or_published(published, training, seed, out, compute_hash, timed, sample) for seed in seeds}
        yield {seed: _check_sample(run, sample) for seed, run in runs.items()}


def _command_cells(
    experiment: Experiment, spec: TableSpec, places: list[Place], out: Path, sample: bool
) -> Iterator[tuple[Place, Ours]]:
    """Yield the cells of a command's file; where it is not finished, each of `places` says so."""
    name, _slash, file = spec.source.partition("/")
    if name not in experiment.commands:
        raise ResultsError(f"{experiment.id}, {spec.id}: no command {name!r}.{suggest(name, experiment.commands)}")
    status = _check_sample(command_status(experiment.commands[name], experiment, out, sample), sample)
    if status.state is not State.DONE:
        yield from ((place, Ours(planned=1, unfinished={name: status})) for place in places)
        return
    for row, columns in read_artefact(status.path / file)["cells"].items():
        for column, entry in columns.items():
            text = entry if isinstance(entry, str) else ""  # such as OOM, for a size that could not be measured
            values = () if text else tuple(float(value) * _factor(spec, column) for value in entry)
            yield (row, column), Ours(values=values, planned=len(values), sources={name: status}, text=text)


def split_overlap(format: str, name: str) -> float | None:  # noqa: A002 (the config key's name)
    """Return n_test / n_train of the official splits of ``dataset.format`` and ``dataset.name``; None: not known."""
    from graphgps_kmip.data import find  # loads torch_geometric: seconds

    try:
        published = find(format, name).statistics
    except InputError:  # of custom modules that are not imported here
        return None
    return published.sizes[2] / published.sizes[0] if published and published.sizes else None


def training_overlap(training: Training) -> float | None:
    """Return the `split_overlap` of a training whose seed is the index of the split, else 0: runs have one split."""
    if not training.splits:
        return 0.0
    dataset = read_yaml(find_config(Path("configs", training.cfg)))["dataset"]
    return split_overlap(dataset["format"], dataset.get("name", ""))


def run_value(kind: str, status: Status) -> float:
    """Return one value of a finished run, of a kind of `VALUES`; a `ResultsError` if its files do not hold it."""
    try:
        return float(VALUES[kind](status))
    except (KeyError, TypeError) as error:
        raise ResultsError(
            f"{status.path} does not hold what {kind} is read from ({error!r}): train it again"
        ) from error


def _score(status: Status) -> float:
    metric, test = status.record["metric_best"], status.record["best"]["test"]
    if metric not in test or metric in ("auto", "loss"):
        raise ResultsError(
            f"{status.path} chose its epoch by {metric!r}, which is no metric of the test split: "
            f"set metric_best in its config to one of {', '.join(name for name in test if name != 'loss')}"
        )
    return test[metric]


def _epoch_seconds(status: Status) -> float:
    """Return the mean duration of a training epoch, validation left out."""
    if "epoch_seconds" in status.record:  # of a published run
        return status.record["epoch_seconds"]
    times = [line["time_epoch"] for line in read_stats(status.path, "train").values()]
    if not times:
        raise ResultsError(f"{status.path}/train/stats.json has no epoch: train it again")
    return statistics.fmean(times)


def _memory_mb(status: Status) -> float:
    """Return the peak memory of the device that trained, on a CPU that of the whole process."""
    peak = status.record["peak_memory"]
    return peak.get("cuda", peak["ram"]) / 2**20


VALUES: dict[str, Callable[[Status], float]] = {
    "score": _score,
    "epoch_seconds": _epoch_seconds,
    "hours": lambda status: status.record["wall_time"] / 3600,  # of the whole run
    "params": lambda status: status.record["params"],
    "width": lambda status: (
        status.record.get("width") or read_run_config(status.path, status.record)["gnn"]["dim_inner"]
    ),
    "memory_mb": _memory_mb,
}
COSTS = {"epoch_seconds", "memory_mb"}  # what other work on the machine changes
TRIALS = "trials"  # of the search that chose a training's settings: no value of a run
