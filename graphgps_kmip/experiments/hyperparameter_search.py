"""Hyper-parameter searches of experiments: trials, the choice by validation, final seeds, and a journal of it all."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.experiments.search_space import Engine, Space
from graphgps_kmip.experiments.tuning.bookkeeper import Bookkeeper, Outcome, Run
from graphgps_kmip.experiments.tuning.journal import Journal
from graphgps_kmip.experiments.tuning.linear import linear
from graphgps_kmip.experiments.tuning.ranges import Ranges, searches
from graphgps_kmip.experiments.tuning.tpe import Study, tpe

# Runs what is not finished, calls the function as each run ends, and returns the statuses in the order of the runs.
Runner = Callable[[list[Run], Callable[[Run, Status], None]], list[Status]]
Steps = Generator[list[Run], list[Status], Outcome]
ENGINES: dict[str, Callable[[Space, Study], Engine]] = {"linear": lambda space, _: linear(space), "tpe": tpe}


@dataclass(frozen=True)
class Options:
    """How a search goes.

    Args:
        trials: of each search of the engine tpe.
        together: trials that the engine tpe asks for at once.
        sample: on sample data.
        named: root of the results as the commands of the journal shall name it; None: as it is.
    """

    trials: int = 30
    together: int = 1
    sample: bool = False
    named: Path | None = None


def run_search(
    experiment: Experiment, engine: str, ranges: Ranges, runner: Runner, out: Path, options: Options = Options()
) -> list[Outcome]:
    """Search the hyper-parameters of all trainings of an experiment that have ranges, and run the final seeds.

    Trials are trainings with a folder of their own, ``<config>-search-<what differs from the default>``, and the
    experiment's first seed. That with the best validation score, of equals the earliest, is run with all seeds. The
    searches go side by side: each call of `runner` gets the runs of all that they wait for. A search that was killed
    goes on when it is started again, since finished runs are not repeated.

    Args:
        experiment: narrowed to what is to be searched.
        engine: ``linear`` or ``tpe``.
        ranges: see `load_ranges`.
        runner: runs trainings, see `Runner`.
        out: root of the results; journals are in ``<out>/search[-sample]/<experiment>/<config>-<engine>.md``.
        options: what else there is.

    Raises:
        ValueError: no such engine; no ranges, or others than those of the journal; no validation split to choose by.
    """
    if engine not in ENGINES:
        raise InputError(f"--search: no engine {engine!r}.{suggest(engine, ENGINES)}")
    books, steps = [], []
    for search in searches(experiment, ranges):
        place = out / f"search{'-sample' if options.sample else ''}" / experiment.id.replace("/", "-")
        journal = Journal(place / f"{Path(search.training.folder).name}-{engine}.jsonl")
        books.append(Bookkeeper(journal, search, options.named or out, options.sample))
        books[-1].begin(experiment.id, engine)
        study = Study(journal.file.with_suffix(".optuna.jsonl"), options.trials, options.together)
        steps.append(_steps(ENGINES[engine](search.space, study), books[-1]))

    def ended(run: Run, status: Status) -> None:
        for book in books:
            book.ended(run, status)

    return _side_by_side(steps, lambda runs: runner(runs, ended))


def _side_by_side(steps: list[Steps], runner: Callable[[list[Run]], list[Status]]) -> list[Outcome]:
    """Take all searches from step to step, with the runs of all in one call of the runner."""
    outcomes: dict[Steps, Outcome] = {}
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


def _steps(engine: Engine, book: Bookkeeper) -> Steps:
    proposals = next(engine)
    while True:
        statuses = yield book.plan(proposals)
        scores = book.judge(proposals, statuses)
        if open_ := [status for status in statuses if status.state not in (State.DONE, State.FAILED, State.DIVERGED)]:
            return book.outcome(f"{len(open_)} trials are not finished: start the search again to go on", False)
        try:
            proposals = engine.send(scores)
        except StopIteration as stop:
            remark = stop.value
            break
    if book.best is None:
        return book.outcome("no trial was finished, so there is nothing to choose from", False)
    finals = book.choose(remark)
    return book.close(finals, (yield finals))
