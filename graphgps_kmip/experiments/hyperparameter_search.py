"""Hyper-parameter search: random draws, TPE or coordinate search, then the final seeds of the best configuration.

What a search does next follows from the runs on disk, so that it stops and continues without a state of its own. Of
models that are tuned alike, what searches chose becomes the rows of their table: `with_choices`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TextIO

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.environment import duration, reproduce_command
from graphgps_kmip.errors import InputError, ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.job_runner import Setup, run_jobs
from graphgps_kmip.experiments.jobs import Place, training_job
from graphgps_kmip.experiments.run_status import ComputeHash, Key, State, Status, read_failure, run_or_published
from graphgps_kmip.experiments.search_space import (
    Choice,
    Ranges,
    Search,
    coordinate_search,
    draw_choices,
    searches,
)
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.results.run_record import read_run_config

EQUAL = "random"  # the engine that gives all trainings the same number of trials, with the same values
ENGINES = (EQUAL, "tpe", "linear")  # linear search is the k-MIP paper's name of its coordinate search
TRIALS = 30
NAMED = 15  # trainings that a message lists
ENDED = (State.DONE, State.FAILED, State.DIVERGED)
Run = tuple[Training, int]  # one seed of a training
ReadStatus = Callable[[Training, int], Status]
Runner = Callable[[list[Run]], list[Status]]  # runs what is not finished, returns the statuses in the order of the runs


@dataclass(frozen=True)
class SearchRecord:
    """What a search tried, what that cost, and what it chose."""

    config: str  # folder of the training that was searched, without its choice
    trials: int  # different configurations, failed ones counted
    failed: int  # configurations of which a run has no validation score
    seconds: float  # of all trials together, failed ones included
    seeds: str  # of the trials, with their splits
    metric: str  # that chose
    value: float  # its mean on validation over the seeds, of the chosen trial
    choice: Mapping[str, str]  # factor -> name of its value
    ranges: Mapping[str, Any]  # factor -> default and names of all values
    published: bool = False  # some of its trials were not run here
    tried: Sequence[TriedChoice] = ()


class TriedChoice(NamedTuple):
    """A trial: one configuration, its runs with one or more seeds, and how they ended."""

    choice: Choice
    runs: list[Run]
    statuses: list[Status]

    @property
    def scores(self) -> list[float | None]:
        """Return the validation score of each run, larger is better; None of one that failed."""
        return [read_score(status) for status in self.statuses]

    @property
    def ended(self) -> bool:
        """Return whether all its runs ended."""
        return all(status.state in ENDED for status in self.statuses)

    @property
    def scored(self) -> bool:
        """Return whether none of its runs, which ended, failed."""
        return None not in self.scores

    @property
    def seconds(self) -> float:
        """Return how long its runs took together, failed ones too."""
        return sum(
            status.record.get("wall_time") or read_failure(status.path).get("seconds", 0.0) for status in self.statuses
        )


class SearchOutcome(NamedTuple):
    """The outcome of one search in a line, its trial log, and whether all of it is finished and nothing failed."""

    line: str
    log: Path
    finished: bool


def list_trials(search: Search, read_status: ReadStatus, number: int, engine: str = EQUAL) -> list[TriedChoice]:
    """Return the trials of a search, also those that have not run, as far as they follow from those that ended.

    All have the first seed of the search; when these ended, the best `Tuning.keep` of them have the other seeds, too.

    Args:
        search (Search): What is searched.
        read_status (callable): Status of one seed's run.
        number (int): Trials, but of ``linear``.
        engine (str, optional): ``random``, ``tpe`` or ``linear``. (default: ``"random"``)
    """

    def make_trial(choice: Choice, seeds: int) -> TriedChoice:
        trainings = [search.trial(choice, place) for place in range(seeds)]
        runs = [(training, training.seeds[0]) for training in trainings]
        return TriedChoice(choice, runs, [read_status(*run) for run in runs])

    trials: list[TriedChoice] = []
    while all(trial.ended for trial in trials):
        choices, scores = [trial.choice for trial in trials], [trial.scores[0] for trial in trials]
        if engine == "linear":
            tags = map(search.space.tag, choices)
            further = coordinate_search(search.space, dict(zip(tags, scores, strict=True)))
        else:
            further = draw_choices(search.space, choices, scores, number, by_tpe=engine == "tpe")
        if not further:
            scored = [trial for trial in trials if trial.scored]
            ranked = sorted(scored, key=lambda trial: -trial.scores[0])  # of equals the earliest first
            best = [trial.choice for trial in ranked[: search.keep]]
            return [make_trial(trial.choice, len(search.seeds)) if trial.choice in best else trial for trial in trials]
        trials += [make_trial(choice, 1) for choice in further]
    return trials


def make_record(search: Search, trials: Sequence[TriedChoice]) -> SearchRecord | None:
    """Return the record of a search; None while trials have not ended, and if none of them has all seeds and scores.

    The choice is that of the largest mean score over the seeds, of equals the earliest.
    """
    if not all(trial.ended for trial in trials):
        return None
    complete = [trial for trial in trials if len(trial.runs) == len(search.seeds) and trial.scored]
    if not complete:
        return None
    best = max(complete, key=lambda trial: fmean(trial.scores))
    return SearchRecord(
        config=search.training.folder,
        trials=len(trials),
        failed=sum(not trial.scored for trial in trials),
        seconds=round(sum(trial.seconds for trial in trials), 1),
        seeds=search.describe_seeds(),
        metric=best.statuses[0].record["metric_best"],
        value=fmean(status.record["best"]["value"] for status in best.statuses),
        choice=best.choice,
        ranges=search.space.ranges,
        published=any("published" in status.record for trial in trials for status in trial.statuses),
        tried=trials,
    )


def run_search(
    experiment: Experiment,
    engine: str,
    ranges: Ranges,
    runner: Runner,
    out: Path,
    trials: int | None = None,
    sample: bool = False,
) -> list[SearchOutcome]:
    """Search the hyper-parameters of all trainings of an experiment that have ranges, and run the final seeds.

    The folder of a trial is ``<config>-search-<what differs from the default>``.

    Args:
        experiment (Experiment): Narrowed to what is to be searched.
        engine (str): ``random``, ``tpe`` or ``linear``.
        ranges (Ranges): See `load_ranges`.
        runner (Runner): Runs trainings.
        out (Path): Root of the results; trial logs are in ``search[-sample]/<experiment>/``.
        trials (int, optional): But of ``linear``. (default: those of the ranges' tuning, else ``TRIALS``)
        sample (bool, optional): On sample data. (default: ``False``)

    Raises:
        InputError: the engine or the number of trials cannot tune equally; Optuna is not installed; no validation
            split.
        ManifestError: no ranges.
    """
    steps = []
    for search in searches(experiment, ranges):
        tuning = search.tuning
        if tuning and (engine != EQUAL or (trials not in (None, tuning.trials) and not sample)):
            what = f"--trials {trials}" if engine == EQUAL else engine
            raise InputError(
                f"{experiment.id} gives every model {tuning.trials} trials, as its ranges say, which {what} would not: "
                f"use --search {EQUAL} without --trials (with --sample fewer)"
            )
        folder = out / f"search{'-sample' if sample else ''}" / experiment.id.replace("/", "-")
        log = folder / f"{Path(search.training.folder).name}-{engine}.md"
        steps.append(_run_steps(search, engine, trials or (tuning.trials if tuning else TRIALS), log))
    outcomes: dict[int, SearchOutcome] = {}
    batches = {number: next(search) for number, search in enumerate(steps)}
    while batches:
        runs = {(training.folder, seed): (training, seed) for batch in batches.values() for training, seed in batch}
        statuses = dict(zip(runs, runner(list(runs.values())), strict=True))
        for number, batch in list(batches.items()):
            try:
                batches[number] = steps[number].send([statuses[training.folder, seed] for training, seed in batch])
            except StopIteration as stop:
                outcomes[number] = stop.value
                del batches[number]
    return [outcomes[number] for number in range(len(steps))]


def make_runner(
    place: Place, setup: Setup, stream: TextIO | None = None, published: Mapping[Key, Status] | None = None
) -> Runner:
    """Return what runs the trainings of a search: those that are neither finished nor published, on this machine."""

    def run(runs: list[Run]) -> list[Status]:
        out, options = place.root / place.out, {"sample": place.sample}
        statuses = [run_or_published(published or {}, *run, out, place.compute_hash, **options) for run in runs]
        jobs = [
            None if "published" in status.record else training_job(*run, place)
            for run, status in zip(runs, statuses, strict=True)
        ]
        if count := jobs.count(None):
            print(f"{count} of {len(runs)} runs are published ones, and not trained again", file=stream)
        run_jobs([job for job in jobs if job], setup, stream)
        return [job.status() if job else status for job, status in zip(jobs, statuses, strict=True)]

    return run


def _run_steps(
    search: Search, engine: str, number: int, log: Path
) -> Generator[list[Run], list[Status], SearchOutcome]:
    """Yield the runs to wait for, get their statuses, and return the outcome."""
    ended: dict[tuple[str, int], Status] = {}  # as seen in this session: what failed in an earlier one may be repeated

    def read_status(training: Training, seed: int) -> Status:
        return ended.get((training.folder, seed), Status(State.MISSING, log, {}))

    def end(line: str, finished: bool = False) -> SearchOutcome:
        return SearchOutcome(f"{search.training.folder}: {line}", log, finished)

    previous: list[Run] = []
    while True:
        trials = list_trials(search, read_status, number, engine)
        runs = [run for trial in trials for run in trial.runs if read_status(*run).state is State.MISSING]
        if not runs or runs == previous:  # of these others run all, and have not ended once more
            break
        previous = runs
        for (training, seed), status in zip(runs, (yield runs), strict=True):
            if status.state in ENDED:
                ended[training.folder, seed] = status
        _write_log(log, search, engine, trials := list_trials(search, read_status, number, engine))
    if runs:
        return end(f"{len(runs)} trials are not finished: start the search again to go on")
    record = make_record(search, trials)
    if record is None:
        return end("no trial was finished, so there is nothing to choose from")
    metric, tag = record.metric, search.space.tag(record.choice)
    finals = [(final, seed) for final in search.finals(record.choice) for seed in final.seeds]
    statuses = yield finals
    rows = []
    for (final, seed), status in zip(finals, statuses, strict=True):
        best = status.record["best"] if status.state is State.DONE else {}
        rows.append([final.folder, f"{seed}", f"{status.state}", _number(best.get("test", {}).get(metric))])
    line = (
        f"{record.trials} trials, {record.failed} failed, {duration(record.seconds)} together. Chosen: `{tag}`, "
        f"validation {metric} {_number(record.value)} ({record.seeds})."
    )
    _write_log(log, search, engine, trials, [line, _table(["final run", "seed", "state", f"test {metric}"], rows)])
    lost = sum(status.state is not State.DONE for status in statuses)
    changes = search.space.differing(record.choice).items()
    line = ", ".join(f"{name} {value}" for name, value in changes) or "the default"
    line += f", validation {metric} {_number(record.value)}"
    return end(line + (f"; {lost} of {len(statuses)} final seeds are missing" if lost else ""), not lost)


def _write_log(
    log: Path, search: Search, engine: str, trials: Sequence[TriedChoice], ending: Sequence[str] = ()
) -> None:
    """Write the trial log: ranges, trials that ended, and at the end the choice and the final seeds."""
    ranges = [[name, default, ", ".join(values)] for name, (default, values) in search.space.ranges.items()]
    ranges += [[key, str(value), ""] for key, value in search.space.fixed.items()]
    rows = []
    for trial in (trial for trial in trials if trial.ended):
        states = map(_describe_end, trial.statuses)
        values = [_number(status.record.get("best", {}).get("value")) for status in trial.statuses]
        params = trial.statuses[0].record.get("params")
        row = [f"`{search.space.tag(trial.choice)}`", ", ".join(dict.fromkeys(states)), " ".join(filter(None, values))]
        rows.append([*row, duration(trial.seconds), f"{params or ''}"])
    lines = [
        f"# Search of {search.training.cfg} by {engine}, {search.describe_seeds()}",
        f"Ranges: {search.space.source}. Scores are as in record.json, without a factor of 100.",
        _table(["factor", "default", "range"], ranges),
        "The largest mean on validation over all seeds is chosen, of equals the first; nothing is chosen by the test "
        "split, and it is not shown among the trials.",
        _table(["trial", "state", "validation", "time", "parameters"], rows),
        *ending,
    ]
    with writing(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        replace_file(log, ("\n\n".join(lines) + "\n").encode())


def _describe_end(status: Status) -> str:
    error = "its score is no number" if status.state is State.DONE and read_score(status) is None else status.error
    return f"{status.state}: {error}" if error else f"{status.state}"


def read_score(status: Status) -> float | None:
    """Return the validation score, its sign changed where smaller is better; None if the run failed or it is NaN."""
    if status.state is not State.DONE:
        return None
    value = status.record["best"]["value"]
    if value is None:
        raise InputError(f"{status.path}: no validation split: a search has nothing to choose by")
    return None if math.isnan(value) else value if is_maximized(status) else -value


def is_maximized(status: Status) -> bool:
    """Return whether a larger validation score is better, for the metric that chose the epoch of a run."""
    if "better" in status.record:  # of a published run
        return status.record["better"] == "higher"
    return (
        status.record["metric_best"] != "loss" and read_run_config(status.path, status.record)["metric_agg"] == "argmax"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)


def with_choices(
    experiment: Experiment, ranges: Ranges, out: Path, compute_hash: ComputeHash, sample: bool = False
) -> Experiment:
    """Return an experiment whose models are tuned alike with the settings that its finished searches chose.

    A search of one's own comes first, then one whose trials are published, in part or all. Trainings without either are
    unchanged, and not in `Experiment.searched`.

    Args:
        experiment (Experiment): As written, with its published runs (`with_published`).
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results, with the trials run here.
        compute_hash (callable): Config hash of a command line.
        sample (bool, optional): On sample data, of which nothing is published. (default: ``False``)
    """
    if "tuning" not in ranges.get(experiment.id, {}):
        return experiment
    trainings, searched = {training.folder: training for training in experiment.trainings}, {}
    for search in searches(experiment, ranges):
        for published in ({}, experiment.published):
            read_status = partial(run_or_published, published, out=out, compute_hash=compute_hash, sample=sample)
            if record := _read_search(search, read_status, sample):
                final = search.finals(record.choice)[0]
                trainings[search.training.folder], searched[final.folder] = final, record
                break
    return dataclasses.replace(experiment, trainings=tuple(trainings.values()), searched=searched)


def _read_search(search: Search, read_status: ReadStatus, sample: bool) -> SearchRecord | None:
    """Return the record of a search with as many trials as its ranges say; samples may have fewer."""
    most = search.tuning.trials
    records = (
        make_record(search, list_trials(search, read_status, n)) for n in range(most, 0 if sample else most - 1, -1)
    )
    return next(filter(None, records), None)


def check_searched(experiment: Experiment, options: Sequence[str] = ()) -> None:
    """Refuse to train what no search has chosen settings for, with the command that searches.

    Args:
        experiment (Experiment): What is to be trained.
        options (sequence of str, optional): What else that command needs. (default: ``()``)
    """
    missing = [row for row in experiment.trainings if row.folder not in (experiment.searched or {})]
    if missing and experiment.searched is not None:
        names = ", ".join(" ".join(training.point.values()) for training in missing[:NAMED])
        names += f" and {len(missing) - NAMED} others" if len(missing) > NAMED else ""
        raise ManifestError(
            f"{experiment.id}: no finished search has chosen the settings of {names}: run "
            f"`{reproduce_command()} {shlex.join(['run', experiment.id, '--search', *options])}`"
        )
