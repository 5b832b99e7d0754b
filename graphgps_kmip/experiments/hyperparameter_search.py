"""Hyper-parameter search: Optuna's trial storage, coordinate search and TPE, then the final seeds of the best trial.

A trial is a training with a run folder of its own, and finished runs are not repeated: a search that was interrupted
continues, also one begun by a version without this storage. Trials are stored in Optuna's journal file: opening its
SQLite storage from two processes at once fails while the tables are made.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.file_lock import held
from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import InputError, ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.job_runner import Progress, Setup, run_jobs
from graphgps_kmip.experiments.jobs import Place, training_job
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.experiments.search_record import EQUAL, search_file, write_search
from graphgps_kmip.experiments.search_space import Choice, Factor, Ranges, Space, searches
from graphgps_kmip.experiments.trial_log import Trial, TrialLog
from graphgps_kmip.results.run_folder import writing

ENGINES = ("linear", EQUAL)  # linear search is the k-MIP paper's name of its coordinate search
TRIALS = 30
ENDED = (State.DONE, State.FAILED, State.DIVERGED)
SEED = 0  # of the TPE sampler
Run = tuple[Training, int]  # one seed of a training
# Runs what is not finished, calls the function as each run ends, and returns the statuses in the order of the runs.
Runner = Callable[[list[Run], Callable[[Run, Status], None]], list[Status]]


@dataclass(frozen=True)
class Options:
    """Options of a search.

    Args:
        trials (int, optional): Trials of each search by TPE, those of earlier sessions counted. (default: None, those
            of the ranges' ``tuning``, else 30)
        together (int, optional): Trials that TPE asks for at once. (default: 1)
        sample (bool, optional): On sample data. (default: False)
        named (Path, optional): Root of the results as commands in the trial log name it. (default: None, as it is)
    """

    trials: int | None = None
    together: int = 1
    sample: bool = False
    named: Path | None = None


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of one search in a line, its trial log, and whether all of it is finished and nothing failed."""

    line: str
    log: Path
    finished: bool


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
        out (Path): Root of the results. ``<out>/search[-sample]/<experiment>/<config>-<engine>.md`` is the trial log,
            ``.optuna.jsonl`` beside it the storage of the trials, ``.json`` the choice (`SearchRecord`).
        options (Options, optional): Further options. (default: ``Options()``)

    Raises:
        InputError: no such engine, or one that cannot tune equally; Optuna is not installed; the storage is of other
            ranges; no validation split.
        ManifestError: no ranges.
        ResultsError: the storage is damaged.
    """
    if engine not in ENGINES:
        raise InputError(f"--search: no engine {engine!r}.{suggest(engine, ENGINES)}")
    found = []
    for search in searches(experiment, ranges):
        if search.tuning and engine != EQUAL:
            raise InputError(
                f"{experiment.id} gives every model the same number of trials, {engine} as many as it has values: use "
                f"--search {EQUAL}"
            )
        file = search_file(experiment.id, search.training, out, options.sample, engine).with_suffix(".md")
        log = TrialLog(file, search, experiment.id, engine, options.named or out, options.sample)
        found.append(_Study(log, options))

    def ended(run: Run, status: Status) -> None:
        for one in found:
            one.ended(run, status)

    return _side_by_side([one.steps() for one in found], lambda runs: runner(runs, ended))


def runner_of(place: Place, setup: Setup, stream: TextIO | None = None) -> Runner:
    """Return what runs the trainings of a search: those that are not finished, as jobs of this machine."""

    def run(runs: list[Run], ended: Callable[[Run, Status], None]) -> list[Status]:
        jobs = [training_job(training, seed, place) for training, seed in runs]
        run_at = {job.path: run for job, run in zip(jobs, runs, strict=True)}
        settled = lambda job: ended(run_at[job.path], job.status())  # noqa: E731
        run_jobs(jobs, setup, Progress(stream, setup.parallel, settled))
        return [job.status() for job in jobs]

    return run


def coordinate_search(space: Space, score_of: Mapping[str, float | None]) -> list[Choice]:
    """Return what to try next: the default, each value of one factor at a time, then the best values together.

    Sections H.3 and H.4 of the k-MIP paper.

    Args:
        space (Space): What is searched.
        score_of (Mapping): Tag of each trial that ended -> its score, larger is better; None if it failed.

    Returns:
        Choices of no trial that ended; empty at the end.
    """
    first = [space.default] + [
        space.default | {factor.name: value}
        for factor in space.factors
        for value in factor.values
        if value != factor.default
    ]
    missing = [choice for choice in first if space.tag(choice) not in score_of]
    return missing or [one for one in [best_together(space, score_of)] if space.tag(one) not in score_of]


def best_together(space: Space, score_of: Mapping[str, float | None]) -> Choice:
    """Return the best value of each factor alone; of equals the default, or else the first. A failed one loses."""

    def best(factor: Factor) -> str:
        def score(value: str) -> float:
            found = score_of.get(space.tag(space.default | {factor.name: value}))
            return -math.inf if found is None else found

        return max([factor.default, *factor.values], key=score)

    return {factor.name: best(factor) for factor in space.factors}


class StorageLock:
    """Lock of a storage file for Optuna, whose own one outlives a process that is killed.

    What a killed process left of an unfinished line is cut off, for the next line must not join it.
    """

    def __init__(self, file: Path) -> None:
        self.file, self._taken = file, contextlib.ExitStack()

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that holds the lock; it may be nested."""
        return held(Path(f"{self.file}.flock"))  # not .lock: Optuna's is a link to the storage

    def acquire(self) -> bool:
        """Take the lock, as Optuna asks for it."""
        self._taken.enter_context(self.held())
        content = self.file.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.file, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._taken.close()


def open_study(optuna: Any, lock: StorageLock) -> Any:
    """Return the Optuna study in the file of a lock, a new one if there is none.

    Raises:
        ResultsError: the file is damaged.
    """
    file = lock.file
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    journal = optuna.storages.journal
    try:
        storage = journal.JournalStorage(journal.JournalFileBackend(str(file), lock))
        return optuna.create_study(study_name="search", storage=storage, direction="maximize", load_if_exists=True)
    except (ValueError, LookupError, TypeError, AssertionError) as error:
        raise ResultsError(
            f"{file} is damaged ({type(error).__name__}: {error}): restore the file, or delete it and search again, "
            "which takes finished trials as they are"
        ) from error


class _Study:
    """One search under way: Optuna's trials, and the statuses of their runs.

    Raises:
        InputError: the storage is of other ranges.
    """

    def __init__(self, log: TrialLog, options: Options) -> None:
        self.log, self.options, self.search, self.space = log, options, log.search, log.search.space
        self.optuna, self.storage = _optuna(), StorageLock(log.file.with_suffix(".optuna.jsonl"))
        self.study = open_study(self.optuna, self.storage)
        self.statuses: dict[tuple[str, int], Status] = {}  # folder and seed of each run that ended in this session
        self.awaited: set[tuple[str, int]] = set()
        self.best: Trial | None = None
        tuning = self.search.tuning
        self.trials = options.trials or (tuning.trials if tuning else TRIALS)
        ranges = {"fixed": dict(self.space.fixed), "factors": self.space.ranges}
        if self.study.user_attrs.get("ranges", ranges) != ranges:
            raise InputError(f"{self.storage.file} is of other ranges than those of today: move it away to begin anew")
        self.study.set_user_attr("ranges", ranges)

    def steps(self) -> Steps:
        """Yield the runs to wait for, get their statuses, and return the outcome."""
        while batch := self._propose():
            statuses = yield self._waiting([self._run(one) for one in batch])
            for trial, status in zip(batch, statuses, strict=True):
                self.ended(self._run(trial), status)
                self._tell(trial, status)
            if lost := sum(status.state not in ENDED for status in statuses):
                return self._outcome(f"{lost} trials are not finished: start the search again to go on", False)
        asked = [one for one in map(self._trial, self._stored()) if one.status]  # none that others have begun since
        tried = _first_of_each(asked)
        scored = [one for one in tried if one.score is not None]
        if not scored:
            return self._outcome("no trial was finished, so there is nothing to choose from", False)
        best = self.best = max(scored, key=lambda one: one.score)  # the first of equals
        finals = [(one, seed) for one in self.search.finals(best.choice) for seed in one.seeds]
        self._write_log()
        with self.storage.held():
            write_search(self.log, tried, best, len(asked))
        statuses = yield self._waiting(finals)
        for run, status in zip(finals, statuses, strict=True):
            self.ended(run, status)
        lost = sum(status.state is not State.DONE for status in statuses)
        words = ", ".join(f"{name} {value}" for name, value in best.differing.items()) or "the default"
        line = f"{words}, validation {best.metric} {best.value:.4g}"
        return self._outcome(line + (f"; {lost} of {len(statuses)} final seeds are missing" if lost else ""), not lost)

    def ended(self, run: Run, status: Status) -> None:
        """Note how a run ended, if this search waits for it."""
        training, seed = run
        if (training.folder, seed) in self.awaited:
            self.awaited.remove((training.folder, seed))
            self.statuses[training.folder, seed] = status
            self._write_log()

    def _waiting(self, runs: list[Run]) -> list[Run]:
        self.awaited = {(training.folder, seed) for training, seed in runs}
        return runs

    def _propose(self) -> list[Any]:
        """Add the next trials to the study, and return all whose status is not known.

        Those of earlier sessions and of other processes are among them: the runner repeats no run that is finished.
        """
        with self.storage.held():  # of two processes on one search, one proposes at a time
            stored = self._stored()
            if self.log.engine == "linear":
                known = {self.space.tag(one.params) for one in stored}
                score_of = {one.tag: one.score for one in self._trials() if one.status}
                for choice in coordinate_search(self.space, score_of):
                    if self.space.tag(choice) not in known:
                        self._add(choice)
            else:
                open_ = sum(one.state.name == "RUNNING" for one in stored)
                for number in range(len(stored), min(self.trials, len(stored) + self.options.together - open_)):
                    self._ask(number)
            # With the lock: a trial of another process that ends just now would be missing, and the search be over.
            open_ones = [one for one in self._stored() if one.state.name == "RUNNING" or not self._trial(one).status]
        self._write_log()
        return open_ones

    def _ask(self, number: int) -> None:
        """Add the default, or what TPE asks for (Bergstra et al., 2011).

        Its sampler is made anew for each trial, with a seed of its own: a search that continues asks for what an
        uninterrupted one would have asked for.
        """
        if number == 0:
            self._add(self.space.default)
        else:
            self.study.sampler = self.optuna.samplers.TPESampler(seed=SEED + number)
            self.study.ask(self._distributions())

    def _add(self, choice: Choice) -> None:
        new, running = self.optuna.trial.create_trial, self.optuna.trial.TrialState.RUNNING
        self.study.add_trial(new(state=running, params=dict(choice), distributions=self._distributions()))

    def _distributions(self) -> dict[str, Any]:
        categorical = self.optuna.distributions.CategoricalDistribution
        return {factor.name: categorical(list(factor.values)) for factor in self.space.factors}

    def _tell(self, trial: Any, status: Status) -> None:
        """Store the score of a trial that ended; one that failed in an earlier session stays failed for Optuna."""
        if status.state in ENDED and trial.state.name == "RUNNING":
            score = self._trial(trial).score
            state = self.optuna.trial.TrialState.FAIL if score is None else None
            # Another process that runs the same search may have been faster.
            with contextlib.suppress(self.optuna.exceptions.UpdateFinishedTrialError):
                self.study.tell(trial.number, score, state=state, skip_if_finished=True)

    def _stored(self) -> list[Any]:
        """Return Optuna's trials, without those whose process was killed while it wrote their values."""
        return [one for one in self.study.trials if one.params.keys() == self.space.default.keys()]

    def _trials(self) -> list[Trial]:
        """Return the configurations that were tried, those that TPE asked for repeatedly once."""
        return _first_of_each(map(self._trial, self._stored()))

    def _trial(self, stored: Any) -> Trial:
        training, seed = self._run(stored)
        differing = self.space.differing(stored.params)
        why = "best of each together" if len(differing) > 1 else " ".join([*differing, "alone"])
        if not differing or self.log.engine == "tpe":
            why = f"TPE {stored.number + 1}" if stored.number else "default"
        date = stored.datetime_complete or stored.datetime_start
        status = self.statuses.get((training.folder, seed))
        return Trial(stored.params, self.space.tag(stored.params), differing, why, date, status)

    def _run(self, stored: Any) -> Run:
        return self.search.trial(stored.params), self.search.seed

    def _remark(self) -> str:
        if self.log.engine == "tpe":
            asked = [self.space.tag(one.params) for one in self._stored()]
            return f"Optuna's TPE asked for {len(asked)} trials, {len(set(asked))} of them different."
        together = best_together(self.space, {one.tag: one.score for one in self._trials()})
        before = ", which was tried before" if len(self.space.differing(together)) < 2 else ""
        return f"The best values together are `{self.space.tag(together)}`{before}."

    def _write_log(self) -> None:
        page = self.log.page(self._trials(), self.best, self._remark() if self.best else "", self.statuses)
        with writing(self.log.file), self.storage.held():
            replace_file(self.log.file, page.encode())

    def _outcome(self, line: str, finished: bool) -> SearchOutcome:
        return SearchOutcome(f"{self.search.training.folder}: {line}", self.log.file, finished)


def _first_of_each(trials: Iterable[Trial]) -> list[Trial]:
    first: dict[str, Trial] = {}
    for one in trials:
        first.setdefault(one.tag, one)
    return list(first.values())


def _side_by_side(steps: list[Steps], runner: Callable[[list[Run]], list[Status]]) -> list[SearchOutcome]:
    """Take all searches from step to step, with the runs of all in one call of the runner."""
    outcomes: dict[Steps, SearchOutcome] = {}
    asked = {one: next(one) for one in steps}
    while asked:
        runs = {(training.folder, seed): (training, seed) for batch in asked.values() for training, seed in batch}
        status_of = dict(zip(runs, runner(list(runs.values())), strict=True))
        following = {}
        for one, batch in asked.items():
            try:
                following[one] = one.send([status_of[training.folder, seed] for training, seed in batch])
            except StopIteration as stop:
                outcomes[one] = stop.value
        asked = following
    return [outcomes[one] for one in steps]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("--search: optuna is not installed: pip install optuna, or 'graphgps_kmip[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # the trial log says how each trial ended
    return optuna
