"""Result tables: the scores of our finished runs beside a paper's printed numbers, read from results on disk.

`build_table` makes a table; `table_layout` puts it into words, `table_formats` writes it as Markdown, LaTeX, CSV, HTML.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.json_files import is_number, read_artefact
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.experiments.chosen_settings import PublishedRuns
from graphgps_kmip.experiments.experiment_spec import Experiment, TableSpec, Training
from graphgps_kmip.experiments.printed_tables import PrintedCell, PrintedTable
from graphgps_kmip.experiments.run_status import TIMED, HashOf, State, Status, command_status, run_status
from graphgps_kmip.experiments.search_record import SearchRecord
from graphgps_kmip.report.run_values import COSTS, TRIALS, VALUES, run_value
from graphgps_kmip.report.welch import Difference, welch


@dataclass(frozen=True)
class Ours:
    """Our side of a cell.

    Args:
        values: of the finished runs, in the unit of the column.
        seeds: of the finished runs, one for each value; empty for the values of a command.
        wanted: how many runs the experiment asks for.
        unfinished: seed (or the command's name) -> status, of the others.
        sources: seed (or the command's name) -> status of what was read, for provenance.
        text: what a command says in place of numbers, such as ``OOM``.
        alone: the values are those of one run that had the machine to itself (``run --timing``).
        published: the runs were not made here (see `chosen_settings`).
    """

    values: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    wanted: int = 0
    unfinished: Mapping[Any, Status] = field(default_factory=dict)
    sources: Mapping[Any, Status] = field(default_factory=dict)
    text: str = ""
    alone: bool = False
    published: bool = False

    @property
    def n(self) -> int:
        """Number of finished runs."""
        return len(self.values)

    @property
    def complete(self) -> bool:
        """Whether every run that is wanted is finished."""
        return 0 < self.n == self.wanted

    @property
    def mean(self) -> float | None:
        """Mean over the finished runs; None without one."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation, sum of squares over n - 1; None below two runs, NaN where a value is."""
        if self.n < 2:
            return None
        return statistics.stdev(self.values) if all(map(math.isfinite, self.values)) else math.nan

    def shown(self, partial: bool) -> bool:
        """Whether a table shows a mean: of all runs, or with `partial` of those that are finished."""
        return self.complete or (partial and bool(self.values))


@dataclass(frozen=True)
class Cell:
    """One cell: ours, and what the paper prints; None where there is none of it."""

    ours: Ours | None = None
    printed: PrintedCell | None = None

    @property
    def our_mean(self) -> float | None:
        """Mean of our values; None without one."""
        return self.ours and self.ours.mean

    @property
    def our_spread(self) -> float:
        """Sample standard deviation of our values; 0 for fewer than two."""
        return (self.ours and self.ours.std) or 0.0

    @property
    def paper_mean(self) -> float | None:
        """Printed mean; None where no number is printed."""
        return self.printed and self.printed.mean

    def difference(self, partial: bool) -> Difference | None:
        """Return ours - printed where both are numbers, and ours is shown."""
        if self.ours is None or self.printed is None or self.printed.mean is None or not self.ours.shown(partial):
            return None
        return welch(self.ours, self.printed)


@dataclass(frozen=True)
class ResultTable:
    """One table of results.

    Args:
        id: ``<paper>/<table>``, or that of a table of our own.
        title: one line.
        experiment: id of the experiment.
        columns: name -> ``metric``, ``better`` (``higher``, ``lower`` or None), ``unit``.
        rows: row -> column -> cell, every row with every column.
        settings: row -> ``exact``, ``ours`` or ``none`` (see `Experiment`), ``quoted`` where no run of ours fills it.
        sample: made of runs on sample data, which are no results; printed numbers are left out.
        printed_hardware: what the paper used.
        notes: of the printed table and the experiment.
        searches: row -> record of the search that chose its settings, where models are tuned alike.
        claims: of the paper, to be checked on our rows.
    """

    id: str
    title: str
    experiment: str
    columns: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Mapping[str, Cell]]
    settings: Mapping[str, str]
    sample: bool = False
    printed_hardware: str = ""
    notes: tuple[str, ...] = ()
    searches: Mapping[str, SearchRecord] = field(default_factory=dict)
    claims: tuple[Mapping[str, Any], ...] = ()


Place = tuple[str, str]  # row and column
SAMPLE_NOTE = "SAMPLE: short runs on small synthetic data, which show that everything runs. No number here is a result."


def build_table(
    experiment: Experiment,
    spec: TableSpec,
    printed: Mapping[str, PrintedTable],
    out: Path,
    hash_of: HashOf,
    sample: bool = False,
    published: bool = False,
) -> ResultTable:
    """Return a table of the results on disk, with every row and column of the printed table of the same id.

    A table of our own has the columns of its `spec`, and the rows of its trainings or of its command's file. A
    sample has no printed numbers. With `published`, published runs fill the rows of which none is finished here.

    Raises:
        ValueError: the spec names what does not exist, two trainings fill one cell, a sample is among results or a
            result among samples, or a finished run does not hold the value.
    """
    paper = printed.get(spec.id)
    if paper is None and not spec.columns:
        raise ResultsError(f"{experiment.id}: no printed table {spec.id!r}.{suggest(spec.id, printed)}")
    columns = paper.columns if paper else spec.columns
    _check_names(spec.scale, {*columns, "default"}, f"{experiment.id}, {spec.id}: scale of column")
    if spec.value == "cells":  # its rows are sizes or the like, which do not compete
        columns = {name: {"ranked": False, **facts} for name, facts in columns.items()}
    rows = dict.fromkeys(paper.rows if paper else ())
    if spec.value == "cells":
        places = [(row, column) for row in rows if _settings(experiment, row) != "quoted" for column in columns]
        ours = dict(_of_command(experiment, spec, places, out, sample))
    else:
        ours = dict(_of_trainings(experiment, spec, _Source(experiment, out, hash_of, sample, published)))
    _check_names([column for _, column in ours], columns, f"{experiment.id}, {spec.id}: column")
    if paper and spec.value != "cells":  # a benchmark may go on to sizes that the paper left out
        added = {row for training in experiment.trainings if training.like for row in training.point.values()}
        _check_names([row for row, _ in ours if row not in added], rows, f"{experiment.id}, {spec.id}: row")
    run = dict.fromkeys(row for row, _ in ours)
    rows |= run
    beside = {} if sample or paper is None else paper.rows
    return ResultTable(
        id=spec.id,
        title=paper.title if paper else spec.title or experiment.title,
        experiment=experiment.id,
        columns=columns,
        rows={
            row: {column: Cell(ours.get((row, column)), beside.get(row, {}).get(column)) for column in columns}
            for row in rows
        },
        settings={row: _settings(experiment, row) if row in run else "quoted" for row in rows},
        sample=sample,
        printed_hardware=paper.hardware if beside else "",
        notes=(
            *([SAMPLE_NOTE] if sample else _not_shown(experiment, spec, ours)),
            *(paper.notes if beside else ()),
            *experiment.notes,
        ),
        searches=dict(_searches(experiment, spec)),
        claims=spec.claims,
    )


def _searches(experiment: Experiment, spec: TableSpec) -> Iterator[tuple[str, SearchRecord]]:
    """Yield row and search of each training whose settings a search chose."""
    for training in experiment.trainings:
        if record := (experiment.searched or {}).get(training.folder):
            yield _place(spec, training, f"{experiment.id}, {spec.id}:")[0], record


def _not_shown(experiment: Experiment, spec: TableSpec, ours: Mapping[Place, Ours]) -> Iterator[str]:
    """Yield which rows are empty although their runs are published."""
    published = [one for one in experiment.trainings if one.folder in experiment.published]
    rows = dict.fromkeys(_place(spec, one, f"{experiment.id}, {spec.id}:")[0] for one in published)
    filled = {row for (row, _), one in ours.items() if one.values}
    if empty := [row for row in rows if row not in filled]:
        yield f"published runs, which --published shows: {', '.join(empty)}."


def _settings(experiment: Experiment, row: str) -> str:
    status = experiment.settings.get(row, experiment.settings.get("default"))
    if status is None:
        raise ResultsError(f"{experiment.id} has no settings for row {row!r}: add `settings: {{default: ...}}`")
    return status


def _check_names(names: Any, allowed: Any, where: str) -> None:
    for name in names:
        if name not in allowed:
            raise ResultsError(f"{where} {name!r} is not in the table.{suggest(name, allowed)}")


def _of_trainings(experiment: Experiment, spec: TableSpec, source: _Source) -> Iterator[tuple[Place, Ours]]:
    """Yield place and cell of each training; of several kinds of values, each has columns ``<column> <kind>``."""
    where = f"{experiment.id}, {spec.id}:"
    kinds = spec.value.split()
    for kind in kinds:
        if kind not in VALUES and kind != TRIALS:
            raise ResultsError(f"{where} unknown value {kind!r}.{suggest(kind, [*VALUES, TRIALS, 'cells'])}")
    filled: dict[Place, str] = {}
    metrics: dict[str, str] = {}
    for training in experiment.trainings:
        if any(training.point.get(axis) not in _words(values) for axis, values in spec.where.items()):
            continue
        row, column = place = _place(spec, training, where)
        if place in filled:
            raise ResultsError(f"{where} {filled[place]} and {training.folder} fill {row}, {column}: choose by `where`")
        filled[place] = training.folder
        runs = source.runs(training)
        for metric in runs.metrics if "score" in kinds else ():
            if metrics.setdefault(column, metric) != metric:
                raise ResultsError(f"{where} column {column} mixes the metrics {metrics[column]} and {metric}")
        search = (experiment.searched or {}).get(training.folder)
        for kind in kinds:
            name = column if len(kinds) == 1 else f"{column} {kind}"
            if kind == TRIALS:
                yield (row, name), Ours(wanted=1, text=f"{search.trials}" if search else "not searched")
            else:
                yield (row, name), runs.cell(kind, _factor(spec, name))


@dataclass(frozen=True)
class _Runs:
    """Runs of one training: on disk, one of them alone on the machine, and published ones in place of all these."""

    found: Mapping[int, Status]
    timed: Status | None
    published: PublishedRuns | None

    @property
    def done(self) -> dict[int, Status]:
        return {seed: run for seed, run in self.found.items() if run.state is State.DONE}

    @property
    def metrics(self) -> list[str]:
        statuses = self.done if self.published is None else self.published.statuses
        return [str(run.record.get("metric_best")) for run in statuses.values()]

    def cell(self, kind: str, factor: float) -> Ours:
        if self.published is not None:
            return self._published_cell(kind, factor, self.published)
        if kind in COSTS and self.timed is not None:
            seed = next(iter(self.found))
            return Ours((run_value(kind, self.timed) * factor,), (seed,), 1, sources={seed: self.timed}, alone=True)
        done = self.done
        return Ours(
            values=tuple(run_value(kind, run) * factor for run in done.values()),
            seeds=tuple(done),
            wanted=len(self.found),
            unfinished={seed: run for seed, run in self.found.items() if seed not in done},
            sources=done,
        )

    def _published_cell(self, kind: str, factor: float, runs: PublishedRuns) -> Ours:
        if kind not in runs.values:
            return Ours(wanted=len(self.found))
        values, alone = tuple(float(one) * factor for one in runs.values[kind]), kind in runs.alone
        seeds, wanted = runs.seeds[: len(values)], 1 if alone else len(self.found)
        sources = {seed: runs.statuses[seed] for seed in seeds}
        return Ours(values, seeds, wanted, sources=sources, alone=alone, published=True)


@dataclass(frozen=True)
class _Source:
    """Where the runs of an experiment are read from."""

    experiment: Experiment
    out: Path
    hash_of: HashOf
    sample: bool
    published: bool

    def runs(self, training: Training) -> _Runs:
        """Return the runs of a training, published ones where they are asked for and none is finished here."""
        found = {seed: self._status(training, seed, self.out) for seed in training.seeds}
        timed = self._status(training, training.seeds[0], self.out / TIMED)
        published = self.experiment.published.get(training.folder) if self.published and not self.sample else None
        none_done = all(run.state is not State.DONE for run in found.values())
        use = published is not None and none_done and published.are_of(training, self.out, self.hash_of)
        return _Runs(found, timed if timed.state is State.DONE else None, published if use else None)

    def _status(self, training: Training, seed: int, out: Path) -> Status:
        run = run_status(training, seed, out, self.hash_of, self.sample)
        return _checked(run, self.sample) if run.state is State.DONE else run


def _of_command(
    experiment: Experiment, spec: TableSpec, places: list[Place], out: Path, sample: bool
) -> Iterator[tuple[Place, Ours]]:
    """Yield the cells of a command's file; where it is not finished, each of `places` says so."""
    name, _slash, file = spec.source.partition("/")
    if name not in experiment.commands:
        raise ResultsError(f"{experiment.id}, {spec.id}: no command {name!r}.{suggest(name, experiment.commands)}")
    status = command_status(experiment.commands[name], experiment, out, sample)
    if status.state is not State.DONE:
        yield from ((place, Ours(wanted=1, unfinished={name: status})) for place in places)
        return
    path = _checked(status, sample).path / file
    cells = _cells(read_artefact(path), path)
    for place, found in (((row, column), cells[row][column]) for row in cells for column in cells[row]):
        # A text, such as OOM, is in the place of a size that could not be measured.
        text, numbers = (found, ()) if isinstance(found, str) else ("", found)
        values = tuple(float(number) * _factor(spec, place[1]) for number in numbers)
        yield place, Ours(values=values, wanted=len(values), sources={name: status}, text=text)


def _cells(content: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    cells = content.get("cells")
    rows = cells.values() if isinstance(cells, dict) else [None]
    good = all(isinstance(row, dict) for row in rows) and all(
        isinstance(found, str) or (isinstance(found, list) and all(map(is_number, found)))
        for row in rows
        for found in row.values()
    )
    if not good:
        raise ResultsError(
            f"{path}: expected JSON with `cells`: row -> column -> values; delete it and run the command again"
        )
    return cells


def _place(spec: TableSpec, training: Training, where: str) -> Place:
    try:
        return spec.row.format(**training.point), spec.column.format(**training.point)
    except KeyError as error:
        raise ResultsError(
            f"{where} {training.folder} has no axis {error}.{suggest(error.args[0], training.point)}"
        ) from error


def _words(values: Any) -> list[str]:
    return [str(value) for value in ([values] if isinstance(values, str | int | float) else values)]


def _checked(status: Status, sample: bool) -> Status:
    if bool(status.record.get("sample")) != sample:
        words = ("a result", "a table of samples") if sample else ("a run on sample data", "a table of results")
        raise ResultsError(f"{status.path} is {words[0]}, which {words[1]} never shows: move it away")
    return status


def _factor(spec: TableSpec, column: str) -> float:
    return spec.scale.get(column, spec.scale.get("default", 1))
