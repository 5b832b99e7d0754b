"""Hyper-parameter search: coordinate search and TPE in Optuna's study, then the final seeds of the best trial.

Finished runs are not repeated: a search that was interrupted continues, also one begun by an earlier version.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from filelock import FileLock

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.environment import duration
from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.job_runner import Setup, run_jobs
from graphgps_kmip.experiments.jobs import Place, training_job
from graphgps_kmip.experiments.run_status import State, Status, read_failure
from graphgps_kmip.experiments.search_space import Choice, Factor, Ranges, Search, Space, searches
from graphgps_kmip.results.run_folder import writing
from graphgps_kmip.results.run_record import read_run_config

EQUAL = "tpe"  # the engine that gives every training as many trials as --trials sets
STUDY, RECORD = "search", "record"  # name of the study in its file, and of the attribute that says what it chose
ENGINES = ("linear", EQUAL)  # linear search is the k-MIP paper's name of its coordinate search
TRIALS = 30
ENDED = (State.DONE, State.FAILED, State.DIVERGED)
SEED = 0  # of the TPE sampler
Run = tuple[Training, int]  # one seed of a training
Runner = Callable[[list[Run]], list[Status]]  # runs what is not finished, returns the statuses in the order of the runs


@dataclass(frozen=True)
class SearchRecord:
    """What a search tried, what that cost, and what it chose."""

    config: str  # folder of the training that was searched, without its choice
    trials: int  # configurations that were asked for, repeated and failed ones counted
    failed: int  # configurations without a validation score
    seconds: float  # of all trials together, failed ones included
    seed: int  # of the trials
    config_hash: str  # of the chosen trial: a choice among trials of other settings than today's does not count
    metric: str  # that chose
    value: float  # its value on validation, of the chosen trial
    choice: Mapping[str, str]  # factor -> name of its value
    ranges: Mapping[str, Any]  # factor -> default and names of all values
    fixed: Mapping[str, Any]  # settings of every trial
    settings: Mapping[str, Any]  # those of the choice, dotted key -> value
    # Each configuration once: tag, state, error, value, seconds, parameters. Empty where the choice was published.
    tried: Sequence[Mapping[str, Any]] = ()

    @property
    def published(self) -> bool:
        """Return whether the choice is a published one, instead of that of a search below the root of the results."""
        return not self.tried


class SearchOutcome(NamedTuple):
    """The outcome of one search in a line, its trial log, and whether all of it is finished and nothing failed."""

    line: str
    log: Path
    finished: bool


class Trial(NamedTuple):
    """A trial that ended."""

    choice: Choice
    status: Status
    score: float | None  # on validation, larger is better; None if it failed


def run_search(
    experiment: Experiment,
    engine: str,
    ranges: Ranges,
    runner: Runner,
    out: Path,
    trials: int | None = None,
    together: int = 1,
    sample: bool = False,
) -> list[SearchOutcome]:
    """Search the hyper-parameters of all trainings of an experiment that have ranges, and run the final seeds.

    The folder of a trial is ``<config>-search-<what differs from the default>``. The trial with the best validation
    score, of equals the earliest, is run with all seeds.

    Args:
        experiment (Experiment): Narrowed to what is to be searched.
        engine (str): ``linear`` or ``tpe``.
        ranges (Ranges): See `load_ranges`.
        runner (Runner): Runs trainings.
        out (Path): Root of the results; study, `SearchRecord` and trial log are in ``search[-sample]/<experiment>/``.
        trials (int, optional): Of each search by TPE. (default: those of the ranges' tuning, else ``TRIALS``)
        together (int, optional): Trials that TPE asks for at once. (default: ``1``)
        sample (bool, optional): On sample data. (default: ``False``)

    Raises:
        InputError: the engine cannot tune equally; Optuna is not installed; the study is of other ranges; no
            validation split.
        ManifestError: no ranges.
    """
    studies = []
    for search in searches(experiment, ranges):
        if search.tuning and engine != EQUAL:
            raise InputError(
                f"{experiment.id} gives every model the same number of trials, {engine} as many as it has values: use "
                f"--search {EQUAL}"
            )
        file = study_file(experiment.id, search.training, out, sample, engine)
        number = trials or (search.tuning.trials if search.tuning else TRIALS)
        studies.append(_Study(search, file, engine, number, together))
    steps = [study.steps() for study in studies]
    outcomes: dict[int, SearchOutcome] = {}
    batches = {number: next(search) for number, search in enumerate(steps)}
    while batches:
        runs = {(training.folder, seed): (training, seed) for batch in batches.values() for training, seed in batch}
        status_of = dict(zip(runs, runner(list(runs.values())), strict=True))
        for number, batch in list(batches.items()):
            try:
                batches[number] = steps[number].send([status_of[training.folder, seed] for training, seed in batch])
            except StopIteration as stop:
                outcomes[number] = stop.value
                del batches[number]
    return [outcomes[number] for number in range(len(steps))]


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


def study_file(experiment: str, training: Training, out: Path, sample: bool, engine: str = EQUAL) -> Path:
    """Return the storage of a training's search; its trial log is next to it."""
    folder = out / f"search{'-sample' if sample else ''}" / experiment.replace("/", "-")
    return folder / f"{Path(training.folder).name}-{engine}.optuna.jsonl"


class StorageLock:
    """Lock of a storage for Optuna, whose own one outlives a process that is killed; it may be taken repeatedly."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lock = FileLock(f"{file}.flock", is_singleton=True)  # not .lock: Optuna's is a link to the storage

    def acquire(self) -> bool:
        """Take the lock, and cut off the unfinished line of a killed process, which the next line must not join."""
        self.lock.acquire()
        content = self.file.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.file, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        self.lock.release()


def open_study(file: Path) -> Any:
    """Return Optuna's study in a file, a new one if there is none; SQLite fails when two processes open it at once."""
    optuna = import_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(file), StorageLock(file))
    storage = optuna.storages.JournalStorage(backend)
    if STUDY in optuna.get_all_study_names(storage):
        return optuna.load_study(study_name=STUDY, storage=storage)
    return optuna.create_study(study_name=STUDY, storage=storage, direction="maximize")


def read_search(file: Path) -> SearchRecord | None:
    """Return the record of the search in a study's file, None if there is none or it has not ended."""
    record = open_study(file).user_attrs.get(RECORD) if file.exists() else None
    return record and SearchRecord(**record)


def import_optuna() -> Any:
    """Return the package; raise an `InputError` that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search: optuna is not installed: pip install optuna, or 'graphgps_kmip[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the trial log says how each trial ended
    return optuna


class _Study:
    def __init__(self, search: Search, file: Path, engine: str, trials: int, together: int) -> None:
        self.search, self.space, self.engine = search, search.space, engine
        self.trials, self.together = trials, together
        self.log = file.with_name(file.name.replace(".optuna.jsonl", ".md"))
        self.optuna = import_optuna()
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        self.lock = StorageLock(file).lock
        with self.lock:
            self.study = open_study(file)
        self.ended: dict[int, Trial] = {}  # number -> trial, as seen in this session
        self.busy: set[int] = set()  # trials that another process runs
        ranges = {"fixed": dict(self.space.fixed), "factors": self.space.ranges}
        if self.study.user_attrs.get("ranges", ranges) != ranges:
            raise InputError(f"{file} is of other ranges than those of today: move it away to begin anew")
        self.study.set_user_attr("ranges", ranges)

    def steps(self) -> Generator[list[Run], list[Status], SearchOutcome]:
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
        facts = self._facts()
        scored = [trial for trial in self._first_trials().values() if trial.score is not None]
        if not scored:
            return self._outcome("no trial was finished, so there is nothing to choose from", False)
        choice, status, _ = max(scored, key=lambda trial: trial.score)  # the first of equals
        metric, value = status.record["metric_best"], status.record["best"]["value"]
        record = SearchRecord(
            config=self.search.training.folder,
            trials=len(self.ended),
            failed=len(facts) - len(scored),
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
        rows = []
        for (final, seed), status in zip(finals, statuses, strict=True):
            best = status.record["best"] if status.state is State.DONE else {}
            rows.append([final.folder, f"{seed}", f"{status.state}", _number(best.get("test", {}).get(metric))])
        line = f"Chosen: `{self.space.tag(choice)}`, validation {metric} {_number(value)}."
        self._write_log([line, _table(["final run", "seed", "state", f"test {metric}"], rows)])
        lost = sum(status.state is not State.DONE for status in statuses)
        changes = ", ".join(f"{name} {value}" for name, value in self.space.differing(choice).items()) or "the default"
        line = f"{changes}, validation {metric} {_number(value)}"
        return self._outcome(line + (f"; {lost} of {len(statuses)} final seeds are missing" if lost else ""), not lost)

    def _propose(self) -> list[Any]:
        """Add the next trials to the study, and return all whose status is not known in this session."""
        with self.lock:  # of two processes on one search, one proposes at a time
            stored = self._list_trials()
            if self.engine == "linear":
                tags = {self.space.tag(trial.params) for trial in stored}
                scores = {tag: trial.score for tag, trial in self._first_trials().items()}
                for choice in coordinate_search(self.space, scores):
                    if self.space.tag(choice) not in tags:
                        self._ask(0, choice)
            else:
                waiting = len(self._open_trials(stored))
                for number in range(len(stored), min(self.trials, len(stored) + self.together - waiting)):
                    self._ask(number, self.space.default if number == 0 else None)
            return self._open_trials(self._list_trials())

    def _ask(self, number: int, choice: Choice | None = None) -> None:
        """Add a choice, or what TPE asks for (Bergstra et al., 2011), with a new sampler and seed for each trial."""
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

    def _list_trials(self) -> list[Any]:
        # without those whose process was killed while it wrote their values
        return [trial for trial in self.study.trials if trial.params.keys() == self.space.default.keys()]

    def _open_trials(self, stored: Iterable[Any]) -> list[Any]:
        return [trial for trial in stored if trial.number not in {*self.ended, *self.busy}]

    def _first_trials(self) -> dict[str, Trial]:
        """Return tag -> first trial of each configuration that ended, in the order in which they were asked for."""
        tried: dict[str, Trial] = {}
        for number in sorted(self.ended):
            tried.setdefault(self.space.tag(self.ended[number].choice), self.ended[number])
        return tried

    def _facts(self) -> list[dict[str, Any]]:
        facts = []
        for tag, (_, status, score) in self._first_trials().items():
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
        with writing(self.log):
            replace_file(self.log, ("\n\n".join(lines) + "\n").encode())

    def _outcome(self, line: str, finished: bool) -> SearchOutcome:
        return SearchOutcome(f"{self.search.training.folder}: {line}", self.log, finished)


def score_of(status: Status) -> float | None:
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
    return status.record["metric_best"] != "loss" and read_run_config(status.path)["metric_agg"] == "argmax"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells)
