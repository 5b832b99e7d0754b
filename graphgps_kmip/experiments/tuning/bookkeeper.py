"""What one search notes in its journal, and what it reads from its runs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.experiments.search_space import Choice, Proposal, Search
from graphgps_kmip.experiments.tuning.journal import WAITING, Journal
from graphgps_kmip.results.finished_runs import read_run_config

Run = tuple[Training, int]  # one seed of a training


@dataclass(frozen=True)
class Outcome:
    """What became of one search.

    Args:
        line: for people.
        journal: page of the journal.
        finished: False: something failed, or is not finished.
    """

    line: str
    journal: Path
    finished: bool


class Bookkeeper:
    """Keeps the journal of one search, and the best choice so far.

    Args:
        journal: where it is written.
        search: what is searched.
        out: root of the results, as commands shall name it.
        sample: on sample data.
    """

    def __init__(self, journal: Journal, search: Search, out: Path, sample: bool) -> None:
        self.journal, self.search, self.out, self.sample = journal, search, out, sample
        self.best: tuple[Choice, float] | None = None  # with its score
        self.metric, self.sign = "", 1  # score = sign * metric
        self._open: dict[tuple[str, int], Callable[[Status], Any]] = {}  # how to note the end of what is run now

    def begin(self, experiment: str, engine: str) -> None:
        """Note what is searched.

        Raises:
            ValueError: the journal is of other ranges.
        """
        training, space = self.search.training, self.search.space
        ranges = {"fixed": dict(space.fixed), "factors": self._factors()}
        known = self.journal.entries.get(("search", training.folder), ranges)
        if any(known[key] != value for key, value in ranges.items()):
            raise InputError(f"{self.journal.file} is of other ranges than those of today: move it away to begin anew")
        facts = {"config": training.cfg, "source": space.source, "seed": training.seeds[0], "sample": self.sample}
        self.journal.note("search", training.folder, experiment=experiment, engine=engine, **facts, **ranges)

    def plan(self, proposals: list[Proposal]) -> list[Run]:
        """Note what is to be tried, and return its runs."""
        runs = [(self.search.trial(one.choice), self.search.training.seeds[0]) for one in proposals]
        for one, (training, seed) in zip(proposals, runs, strict=True):
            if ("trial", self.search.space.tag(one.choice)) not in self.journal.entries:
                self._note_trial(one, state=WAITING)
            self._open[training.folder, seed] = partial(self.score, one)
        return runs

    def ended(self, run: Run, status: Status) -> None:
        """Note that a run ended, if it is one of this search."""
        training, seed = run
        if note := self._open.pop((training.folder, seed), None):
            note(status)

    def score(self, proposal: Proposal, status: Status) -> float | None:
        """Note how a trial ended, and return its score: the validation metric, larger is better; None if it failed.

        Raises:
            ValueError: the run has no validation split.
        """
        score = None
        if status.state is State.DONE:
            value = status.record["best"]["value"]
            if value is None:
                raise InputError(f"{status.path}: no validation split: a search has nothing to choose by")
            self.metric, self.sign = status.record["metric_best"], 1 if _maximize(status) else -1
            score = None if math.isnan(value) else self.sign * value
        self._note_trial(
            proposal,
            state=status.state,
            value=self._value(score),
            seconds=status.record.get("wall_time"),
            params=status.record.get("params"),
            error="its score is no number" if status.state is State.DONE and score is None else status.error,
        )
        return score

    def judge(self, proposals: list[Proposal], statuses: list[Status]) -> list[float | None]:
        """Return the scores of trials, and keep the best one; the first of equals stays."""
        scores = [self.score(*pair) for pair in zip(proposals, statuses, strict=True)]
        for one, score in zip(proposals, scores, strict=True):
            if score is not None and (self.best is None or score > self.best[1]):
                self.best = (one.choice, score)
        return scores

    def choose(self, remark: str) -> list[Run]:
        """Note the best choice and why, and return the runs of its final seeds."""
        choice, score = self.best
        finals = self.search.finals(choice)
        self.journal.note(
            "choice",
            self.search.training.folder,
            trial=self.search.space.tag(choice),
            choice=dict(choice),
            value=self._value(score),
            metric=self.metric,
            better="largest" if self.sign > 0 else "smallest",
            remark=remark,
            factors=self._factors(),
            folders=[one.folder for one in finals],
            commands=[self._command(one) for one in finals],
            yaml=_yaml(finals[0]),
        )
        runs = [(one, seed) for one in finals for seed in one.seeds]
        self._open = {(one.folder, seed): partial(self._note_final, (one, seed)) for one, seed in runs}
        return runs

    def close(self, finals: list[Run], statuses: list[Status]) -> Outcome:
        """Note the final seeds, and return what became of the search."""
        for run, status in zip(finals, statuses, strict=True):
            self._note_final(run, status)
        lost = sum(status.state is not State.DONE for status in statuses)
        found = self.search.space.differing(self.best[0])
        words = ", ".join(f"{name} {value}" for name, value in found.items()) or "the default"
        line = f"{words}, validation {self.metric} {self._value(self.best[1]):.4g}"
        return self.outcome(line + (f"; {lost} of {len(statuses)} final seeds are missing" if lost else ""), not lost)

    def outcome(self, line: str, finished: bool) -> Outcome:
        """Return what became of the search."""
        return Outcome(f"{self.search.training.folder}: {line}", self.journal.page, finished)

    def _note_trial(self, proposal: Proposal, **facts: Any) -> None:
        differing = self.search.space.differing(proposal.choice)
        name = self.search.space.tag(proposal.choice)
        self.journal.note("trial", name, why=proposal.why, differing=differing, **facts)

    def _note_final(self, run: Run, status: Status) -> None:
        training, seed = run
        best = status.record["best"] if status.state is State.DONE else {}
        self.journal.note(
            "final",
            f"{training.folder}/{seed}",
            folder=training.folder,
            seed=seed,
            state=status.state,
            value=best.get("value"),
            test=best.get("test", {}).get(self.metric),
            seconds=status.record.get("wall_time"),
            error=status.error,
        )

    def _value(self, score: float | None) -> float | None:
        return None if score is None else self.sign * score

    def _factors(self) -> dict[str, list[Any]]:
        return {factor.name: [factor.default, list(factor.values)] for factor in self.search.space.factors}

    def _command(self, training: Training) -> str:
        words = training.words(training.seeds[0], self.out, self.sample)
        repeat = [] if training.splits else ["--repeat", str(len(training.seeds))]
        return shlex.join(["python", "main.py", *words[:2], *repeat, *words[2:]])


def _maximize(status: Status) -> bool:
    """Return whether a larger value of the selecting metric is better, from the run's config, which was checked."""
    if status.record["metric_best"] == "loss":
        return False
    return read_run_config(status.path, status.record).get("metric_agg") == "argmax"


def _yaml(training: Training) -> str:
    """Return a config file with the settings of a training, to stand beside the file that it builds on."""
    content: dict[str, Any] = {"base": Path(training.cfg).name}
    for key, value in training.settings.items():
        *groups, last = key.split(".")
        node = content
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return yaml.safe_dump(content, sort_keys=False)
