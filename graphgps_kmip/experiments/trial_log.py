"""Trial log: the Markdown page of a hyper-parameter search, with its trials, the choice and the final seeds."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.durations import duration
from graphgps_kmip.errors import InputError
from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.run_status import State, Status
from graphgps_kmip.experiments.search_space import Choice, Search
from graphgps_kmip.results.finished_runs import read_run_config

Statuses = Mapping[tuple[str, int], Status]  # folder and seed -> of a run that ended


@dataclass(frozen=True)
class Trial:
    """One configuration that was tried: what it changes in the default, why, and its status once it has ended."""

    choice: Choice
    tag: str
    differing: Mapping[str, str]
    why: str
    date: datetime
    status: Status | None

    @property
    def metric(self) -> str:
        """Return the metric of the validation score."""
        return self.status.record["metric_best"]

    @property
    def value(self) -> float | None:
        """Return the validation score; None if the run is not finished, or its score is no number.

        Raises:
            InputError: the run has no validation split.
        """
        if self.status is None or self.status.state is not State.DONE:
            return None
        value = self.status.record["best"]["value"]
        if value is None:
            raise InputError(f"{self.status.path}: no validation split: a search has nothing to choose by")
        return None if math.isnan(value) else value

    @property
    def maximize(self) -> bool:
        """Return whether a larger validation score is better, by the run's own config."""
        config = read_run_config(self.status.path, self.status.record)
        return self.metric != "loss" and config.get("metric_agg") == "argmax"

    @property
    def score(self) -> float | None:
        """Return the validation score, its sign changed where smaller is better."""
        return None if self.value is None else self.value if self.maximize else -self.value


@dataclass(frozen=True)
class TrialLog:
    """The trial log of one search by an engine, ``linear`` or ``tpe``; its commands name `out` as root of results."""

    file: Path
    search: Search
    experiment: str
    engine: str
    out: Path
    sample: bool

    def page(self, trials: Sequence[Trial], best: Trial | None, remark: str, statuses: Statuses) -> str:
        """Return the page of trials in the order in which they were asked for; `remark` is on the best one."""
        lines = [*self._head(), "## Trials", "", "Nothing is chosen by the test split, and it is not shown here.", ""]
        lines += _trial_table(trials)
        if best:
            finals = self.search.finals(best.choice)
            lines += self._choice(trials, best, remark) + _finals(finals, best.metric, statuses) + self._by_hand(finals)
        return "\n".join(lines)

    def _head(self) -> list[str]:
        training, space = self.search.training, self.search.space
        fixed = " and ".join(f"`{key} {value}`" for key, value in space.fixed.items())
        return [
            f"# Search of {training.cfg} for {self.experiment}{', on sample data' if self.sample else ''}",
            "",
            f"Engine: {self.engine}. Ranges: {space.source}. One run of each configuration, seed {self.search.seed}.",
            *([f"All have {fixed}."] if fixed else []),
            "Scores are as in record.json, without a factor of 100.",
            "",
            *_table(
                ["factor", "default", "range"],
                [[name, default, ", ".join(values)] for name, (default, values) in space.ranges.items()],
            ),
        ]

    def _choice(self, trials: Sequence[Trial], best: Trial, remark: str) -> list[str]:
        finished = sum(one.value is not None for one in trials)
        default = next((_score(one) for one in trials if not one.differing), "not tried")
        better = "largest" if best.maximize else "smallest"
        rows = []
        for name, (standard, values) in self.search.space.ranges.items():
            alone = {one.differing.get(name, standard): one for one in trials if one.differing.keys() <= {name}}
            tried = [f"{value}: {_score(alone[value])}" for value in values if value in alone]
            rows.append([name, "; ".join(tried), best.choice[name]])
        return [
            "## Choice",
            "",
            f"`{best.tag}` has the {better} validation {best.metric}, {_number(best.value)}, of {finished} finished "
            f"trials (tried: {len(trials)}; the default: {default}). The first of equals is taken.",
            remark,
            "",
            *_table(["factor", "validation, the others at their default", "chosen"], rows),
        ]

    def _by_hand(self, finals: Sequence[Training]) -> list[str]:
        commands = []
        for one in finals:
            words = one.words(one.seeds[0], self.out, self.sample)
            repeat = [] if one.splits else ["--repeat", str(len(one.seeds))]
            commands.append(shlex.join(["python", "main.py", *words[:2], *repeat, *words[2:]]))
        return [
            *("## By hand", "", "```bash", *commands, "```", ""),
            *("or as a YAML file beside that of the run:", "", "```yaml", *_yaml(finals[0]).splitlines(), "```", ""),
        ]


def _trial_table(trials: Sequence[Trial]) -> list[str]:
    rows = []
    for number, one in enumerate(trials, start=1):
        changes = ", ".join(f"{name} {value}" for name, value in one.differing.items())
        params = one.status.record.get("params") if one.status else None
        facts = [_number(one.value), "" if params is None else f"{params:,}", _time(one.status), _state(one.status)]
        rows.append([f"{number}", f"`{one.tag}`", changes, one.why, *facts, f"{one.date:%Y-%m-%d %H:%M}"])
    head = ["#", "trial", "differs from the default", "why", "validation", "parameters", "time", "state", "date"]
    return _table(head, rows)


def _finals(finals: Sequence[Training], metric: str, statuses: Statuses) -> list[str]:
    rows, means = [], []
    for one in finals:
        tests = []
        for seed in one.seeds:
            status = statuses.get((one.folder, seed))
            best = status.record["best"] if status and status.state is State.DONE else {}
            tests.append(best.get("test", {}).get(metric))
            facts = [_number(best.get("value")), _number(tests[-1]), _time(status), _state(status)]
            rows.append([one.folder, f"{seed}", *facts])
        if known := [test for test in tests if test is not None]:
            spread = f" ± {_number(statistics.stdev(known))}" if len(known) > 1 else ""
            count = f"({len(known)} of {len(tests)} seeds; sample standard deviation)"
            means.append(f"- {one.folder}: test {metric} {_number(statistics.mean(known))}{spread} {count}")
    return ["## Final seeds", "", *_table(["run", "seed", "validation", "test", "time", "state"], rows), *means, ""]


def _yaml(training: Training) -> str:
    """Return a config file with the settings of a training, to be put beside the file that it builds on."""
    content: dict[str, Any] = {"base": Path(training.cfg).name}
    for key, value in training.settings.items():
        *groups, last = key.split(".")
        node = content
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value
    return yaml.safe_dump(content, sort_keys=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(one.replace('|', '/') for one in row)} |" for row in cells), ""]


def _state(status: Status | None) -> str:
    if status is None:
        return "waiting"
    nan = status.state is State.DONE and math.isnan(status.record["best"]["value"] or 0.0)
    error = "its score is no number" if nan else status.error
    return f"{status.state}: {error}" if error else status.state


def _score(trial: Trial) -> str:
    return _number(trial.value) or (trial.status.state if trial.status else "waiting")


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _time(status: Status | None) -> str:
    return duration(status.record["wall_time"]) if status and "wall_time" in status.record else ""
