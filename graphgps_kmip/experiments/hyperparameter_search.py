"""Hyper-parameter search: coordinate search and TPE in Optuna's study, then the final seeds of the best trial.

A trial is a training with a run folder of its own, and finished runs are not repeated: a search that was interrupted
continues, also one begun by an earlier version.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.environment import duration
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.job_runner import Setup, run_jobs
from graphgps_kmip.experiments.jobs import Place, training_job
from graphgps_kmip.experiments.run_status import State, Status, read_failure
from graphgps_kmip.experiments.search_record import (
    EQUAL,
    RECORD,
    SearchRecord,
    StorageLock,
    import_optuna,
    open_study,
    study_file,
)
from graphgps_kmip.experiments.search_space import Choice, Factor, Ranges, Search, Space, searches
from graphgps_kmip.results.finished_runs import read_run_config
from graphgps_kmip.results.run_folder import writing

ENGINES = ("linear", EQUAL)  # linear search is the k-MIP paper's name of its coordinate search
TRIALS = 30
ENDED = (State.DONE, State.FAILED, State.DIVERGED)
SEED = 0  # of the TPE sampler
Run = tuple[Training, int]  # one seed of a training
Runner = Callable[[list[Run]], list[Status]]  # runs what is not finished, returns the statuses in the order of the runs


@dataclass(frozen=True)
class Options:
    """Options of a search."""

    trials: int | None = None  # of each search by TPE; None: those of the ranges' tuning, else `TRIALS`
    together: int = 1  # trials that TPE asks for at once
    sample: bool = False  # on sample data


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of one search in a line, its trial log, and whether all of it is finished and nothing failed."""

    line: str
    log: Path
    finished: bool


class Trial(NamedTuple):
    """A trial that ended."""

    choice: Choice
    status: Status
    score: float | None  # on validation, larger is better; None if it failed


Steps = Generator[list[Run], list[Status], SearchOutcome]


def run_search(
    experiment: Experiment, engine: str, ranges: Ranges, runner: Runner, out: Path, options: Options = Options()
) -> list[SearchOutcome]:
    """Search the hyper-parameters of all trainings of an experiment that have ranges, and run the final seeds.

    The folder of a trial is ``<config>-search-<what differs from the default>``, its seed `Search.seed`. The trial with
    the best validation score, of equals the earliest, is run with all seeds. The searches advance side by side: each
    call of `runner` gets the runs that any of them waits for.

    Args:
        experiment (Experiment): Narrowed to what is to be searched.
        engine (str): ``linear`` or ``tpe``.
        ranges (Ranges): See `load_ranges`.
        runner (Runner): Runs trainings.
        out (Path): Root of the results. ``<out>/search[-sample]/<experiment>/<config>-<engine>.optuna.jsonl`` has the
            study, with the `SearchRecord` of the choice; ``.md`` is the trial log.
        options (Options, optional): Further options. (default: ``Options()``)

    Raises:
        InputError: no such engine, or one that cannot tune equally; Optuna is not installed; the study is of other
            ranges; no validation split.
        ManifestError: no ranges.
    """
    if engine not in ENGINES:
        raise InputError(f"--search: no engine {engine!r}.{suggest(engine, ENGINES)}")
    studies = []
    for search in searches(experiment, ranges):
        if search.tuning and engine != EQUAL:
            raise InputError(
                f"{experiment.id} gives every model the same number of trials, {engine} as many as it has values: use "
                f"--search {EQUAL}"
            )
        file = study_file(experiment.id, search.training, out, options.sample, engine)
        studies.append(_Study(search, file, engine, options))
    steps = [study.steps() for study in studies]
    outcomes: dict[Steps, SearchOutcome] = {}
    asked = {each: next(each) for each in steps}
    while asked:
        runs = {(training.folder, seed): (training, seed) for batch in asked.values() for training, seed in batch}
        status_of = dict(zip(runs, runner(list(runs.values())), strict=True))
        following = {}
        for each, batch in asked.items():
            try:
                following[each] = each.send([status_of[training.folder, seed] for training, seed in batch])
            except StopIteration as stop:
                outcomes[each] = stop.value
        asked = following
    return [outcomes[each] for each in steps]


def runner_of(place: Place, setup: Setup, stream: TextIO | None = None) -> Runner:
    """Return what runs the trainings of a search: those that are not finished, as jobs of this machine."""

    def run(runs: list[Run]) -> list[Status]:
        jobs = [training_job(training, seed, place) for training, seed in runs]
        run_jobs(jobs, setup, stream)
        return [job.status() for job in jobs]

    return run


def coordinate_search(space: Space, score_of: Mapping[str, float | None]) -> list[Choice]:
    """Return what to try next: the default, each value of one factor at a time, then the best values together.

    Sections H.3 and H.4 of the k-MIP paper. The best value of a factor is that of the largest score alone; of equals
    the default, or else the first; one that failed loses.

    Args:
        space (Space): What is searched.
        score_of (Mapping): Tag of each trial that ended -> its score, larger is better; None if it failed.

    Returns:
        Choices of no trial that ended; empty at the end.
    """

    def best_value(factor: Factor) -> str:
        scores = {value: score_of.get(space.tag(space.default | {factor.name: value})) for value in factor.values}
        return max([factor.default, *scores], key=lambda value: -math.inf if scores[value] is None else scores[value])

    first = [space.default] + [
        space.default | {factor.name: value}
        for factor in space.factors
        for value in factor.values
        if value != factor.default
    ]
    missing = [choice for choice in first if space.tag(choice) not in score_of]
    together = {factor.name: best_value(factor) for factor in space.factors}
    return missing or ([] if space.tag(together) in score_of else [together])


class _Study:
    """One search under way: Optuna's trials, and the statuses of their runs.

    Raises:
        InputError: the study is of other ranges.
    """

    def __init__(self, search: Search, file: Path, engine: str, options: Options) -> None:
        self.search, self.space, self.file, self.engine, self.options = search, search.space, file, engine, options
        self.optuna = import_optuna()
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        self.lock = StorageLock(file).lock
        with self.lock:
            self.study = open_study(file)
        self.ended: dict[int, Trial] = {}  # number -> trial, as seen in this session
        self.busy: set[int] = set()  # trials that another process runs
        self.trials = options.trials or (search.tuning.trials if search.tuning else TRIALS)
        ranges = {"fixed": dict(self.space.fixed), "factors": self.space.ranges}
        if self.study.user_attrs.get("ranges", ranges) != ranges:
            raise InputError(f"{file} is of other ranges than those of today: move it away to begin anew")
        self.study.set_user_attr("ranges", ranges)

    def steps(self) -> Steps:
        """Yield the runs to wait for, get their statuses, and return the outcome."""
        ended = -1
        while (batch := self._propose()) or (self.busy and len(self.ended) > ended):
            if not batch:  # what others ran may have ended: once more, while that is so
                ended = len(self.ended)
                self.busy.clear()
                continue
            statuses = yield [(self.search.trial(trial.params), self.search.seed) for trial in batch]
            for trial, status in zip(batch, statuses, strict=True):
                self._tell(trial, status)
            self._write_log()
        if self.busy:
            return self._outcome(f"{len(self.busy)} trials are not finished: start the search again to go on", False)
        tried, facts = self._tried(), self._facts()
        scored = [trial for trial in tried.values() if trial.score is not None]
        if not scored:
            return self._outcome("no trial was finished, so there is nothing to choose from", False)
        choice, status, _ = max(scored, key=lambda trial: trial.score)  # the first of equals
        metric, value = status.record["metric_best"], status.record["best"]["value"]
        record = SearchRecord(
            config=self.search.training.folder,
            trials=len(self.ended),
            failed=len(tried) - len(scored),
            seconds=round(sum(trial["seconds"] for trial in facts), 1),
            seed=self.search.seed,
            config_hash=status.record["config_hash"],
            metric=metric,
            value=value,
            choice=choice,
            ranges=self.space.ranges,
            fixed=self.space.fixed,
            settings=self.space.settings(choice),
            tried=facts,
        )
        self.study.set_user_attr(RECORD, dataclasses.asdict(record))
        finals = [(final, seed) for final in self.search.finals(choice) for seed in final.seeds]
        statuses = yield finals
        rows = [[final.folder, f"{seed}"] for final, seed in finals]
        for row, status in zip(rows, statuses, strict=True):
            best = status.record["best"] if status.state is State.DONE else {}
            row += [f"{status.state}", _number(best.get("test", {}).get(metric))]
        chosen = f"Chosen: `{self.space.tag(choice)}`, validation {metric} {_number(value)}."
        self._write_log([chosen, _table(["final run", "seed", "state", f"test {metric}"], rows)])
        lost = sum(status.state is not State.DONE for status in statuses)
        changes = ", ".join(f"{name} {value}" for name, value in self.space.differing(choice).items()) or "the default"
        line = f"{changes}, validation {metric} {_number(value)}"
        return self._outcome(line + (f"; {lost} of {len(statuses)} final seeds are missing" if lost else ""), not lost)

    def _propose(self) -> list[Any]:
        """Add the next trials to the study, and return all whose status is not known in this session.

        Those of earlier sessions and of other processes are among them: the runner repeats no run that is finished.
        """
        with self.lock:  # of two processes on one search, one proposes at a time
            stored = self._stored()
            if self.engine == "linear":
                tags = {self.space.tag(trial.params) for trial in stored}
                scores = {tag: trial.score for tag, trial in self._tried().items()}
                for choice in coordinate_search(self.space, scores):
                    if self.space.tag(choice) not in tags:
                        self._ask(0, choice)
            else:
                waiting = len(self._unknown(stored))
                for number in range(len(stored), min(self.trials, len(stored) + self.options.together - waiting)):
                    self._ask(number, self.space.default if number == 0 else None)
            return self._unknown(self._stored())

    def _ask(self, number: int, choice: Choice | None = None) -> None:
        """Add a choice, or what TPE asks for (Bergstra et al., 2011).

        Its sampler is made anew for each trial, with a seed of its own: a search that continues asks for what an
        uninterrupted one would have asked for.
        """
        if choice is not None:
            self.study.enqueue_trial(choice)
        self.study.sampler = self.optuna.samplers.TPESampler(seed=SEED + number)
        categorical = self.optuna.distributions.CategoricalDistribution
        self.study.ask({factor.name: categorical(list(factor.values)) for factor in self.space.factors})

    def _tell(self, trial: Any, status: Status) -> None:
        """Store the score of a trial that ended; one that failed in an earlier session stays failed for Optuna."""
        if status.state not in ENDED:
            self.busy.add(trial.number)
            return
        score = score_of(status)
        self.ended[trial.number] = Trial(trial.params, status, score)
        with self.lock:  # another process that runs the same search may have been faster
            state = self.optuna.trial.TrialState.FAIL if score is None else None
            self.study.tell(trial.number, score, state=state, skip_if_finished=True)

    def _stored(self) -> list[Any]:
        """Return Optuna's trials, without those whose process was killed while it wrote their values."""
        return [trial for trial in self.study.trials if trial.params.keys() == self.space.default.keys()]

    def _unknown(self, stored: Iterable[Any]) -> list[Any]:
        return [trial for trial in stored if trial.number not in {*self.ended, *self.busy}]

    def _tried(self) -> dict[str, Trial]:
        """Return tag -> first trial of each configuration that ended, in the order in which they were asked for."""
        tried: dict[str, Trial] = {}
        for number in sorted(self.ended):
            tried.setdefault(self.space.tag(self.ended[number].choice), self.ended[number])
        return tried

    def _facts(self) -> list[dict[str, Any]]:
        """Return what is recorded of each configuration that ended."""
        facts = []
        for tag, (_, status, score) in self._tried().items():
            record, nan = status.record, status.state is State.DONE and score is None
            entry = {"tag": tag, "state": str(status.state), "error": "its score is no number" if nan else status.error}
            entry["value"] = None if score is None else record["best"]["value"]
            entry["seconds"] = record.get("wall_time") or read_failure(status.path).get("seconds", 0.0)
            facts.append({**entry, "params": record.get("params")})
        return facts

    def _write_log(self, end: Sequence[str] = ()) -> None:
        """Write the trial log: ranges, trials that ended, and at the end the choice and the final seeds."""
        ranges = [[name, default, ", ".join(values)] for name, (default, values) in self.space.ranges.items()]
        ranges += [[key, str(value), ""] for key, value in self.space.fixed.items()]
        rows = [
            [
                *(f"`{trial['tag']}`", ": ".join(filter(None, [trial["state"], trial["error"]]))),
                *(_number(trial["value"]), duration(trial["seconds"]), f"{trial['params'] or ''}"),
            ]
            for trial in self._facts()
        ]
        lines = [
            f"# Search of {self.search.training.cfg} by {self.engine}, seed {self.search.seed}",
            f"Ranges: {self.space.source}. Scores are as in record.json, without a factor of 100.",
            _table(["factor", "default", "range"], ranges),
            "Nothing is chosen by the test split, and it is not shown among the trials. Of equals the first is chosen.",
            _table(["trial", "state", "validation", "time", "parameters"], rows),
            *end,
        ]
        log = self._outcome("", True).log
        with writing(log):
            replace_file(log, ("\n\n".join(lines) + "\n").encode())

    def _outcome(self, line: str, finished: bool) -> SearchOutcome:
        log = self.file.with_name(self.file.name.replace(".optuna.jsonl", ".md"))
        return SearchOutcome(f"{self.search.training.folder}: {line}", log, finished)


def score_of(status: Status) -> float | None:
    """Return the validation score, its sign changed where smaller is better; None if the run failed or it is NaN.

    Raises:
        InputError: the run has no validation split.
    """
    if status.state is not State.DONE:
        return None
    value = status.record["best"]["value"]
    if value is None:
        raise InputError(f"{status.path}: no validation split: a search has nothing to choose by")
    config = read_run_config(status.path, status.record)
    maximize = status.record["metric_best"] != "loss" and config.get("metric_agg") == "argmax"
    return None if math.isnan(value) else value if maximize else -value


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)
