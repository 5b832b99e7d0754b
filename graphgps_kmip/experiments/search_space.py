"""Search spaces of hyper-parameter searches: factors with named values, and their YAML files below ``ranges/``.

Also what a search tries next in a space, by coordinate search, random draws or TPE.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import InputError, ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.manifest import check_keys, section

Choice = Mapping[str, str]  # factor -> name of its value
Ranges = Mapping[str, Mapping[str, Any]]  # id of an experiment -> its entry in a YAML file
TAG = "search"
RANDOM = 10  # trials that TPE draws at random
ROUND = 4  # further ones that it draws at once from the scores of all before, so that --jobs may run them together
DRAWS = 200  # of a round at most, to find configurations that are new
# Both become part of a folder's name. A factor of letters alone keeps k1 = 5 and k = 15 apart.
FACTOR_NAME, VALUE_NAME = re.compile(r"[A-Za-z]+"), re.compile(r"[\w.+-]+")


class Factor(NamedTuple):
    """One hyper-parameter."""

    name: str  # letters
    default: str  # name of the value to start from
    values: Mapping[str, Mapping[str, Any]]  # name -> settings, in the order in which they are tried


@dataclass(frozen=True)
class Space:
    """All combinations of the values of some factors."""

    factors: tuple[Factor, ...]  # in the order of the folder's name
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings of every configuration
    source: str = ""  # where the ranges are from

    @property
    def default(self) -> dict[str, str]:
        """Return the choice to start from."""
        return {factor.name: factor.default for factor in self.factors}

    @property
    def ranges(self) -> dict[str, list[Any]]:
        """Return the default and the names of all values of each factor."""
        return {factor.name: [factor.default, list(factor.values)] for factor in self.factors}

    def differing(self, choice: Choice) -> dict[str, str]:
        """Return what a choice changes in the default."""
        return {name: choice[name] for name, default in self.default.items() if choice[name] != default}

    def settings(self, choice: Choice) -> dict[str, Any]:
        """Return the settings of a choice, those at their default too: the config file may hold others."""
        settings = dict(self.fixed)
        for factor in self.factors:
            settings |= factor.values[choice[factor.name]]
        return settings

    def tag(self, choice: Choice) -> str:
        """Return how the folder of a choice ends: ``search-lr0.0005-depth10``, or ``search-default``."""
        changes = [f"{name}{value}" for name, value in self.differing(choice).items()]
        return "-".join([TAG, *(changes or ["default"])])


class Follower(NamedTuple):
    """A training that takes over the choice of another one, and what differs: settings, end of the name."""

    training: Training
    settings: Mapping[str, Any]
    tag: str


class Tuning(NamedTuple):
    """Equal tuning: all trainings of an experiment are searched alike, and their rows are what the searches choose."""

    trials: int  # of each training, failed ones counted
    # Of the trials, and of no reported run: all trials run with the first one, the best also with the others. Where the
    # seed of a training is its split, the trials of the first seed are on split 0, of the second on split 1, ...
    seeds: tuple[int, ...]
    keep: int | None = None  # trials that run with the other seeds; None: all
    settings: Mapping[str, Any] = {}  # of the trials alone, such as fewer epochs


@dataclass(frozen=True)
class Search:
    """One training whose hyper-parameters are searched."""

    training: Training  # without what is searched
    space: Space
    followers: tuple[Follower, ...] = ()  # trainings that take over the choice
    tuning: Tuning | None = None  # where all models are tuned alike

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of the trials: the first of the experiment, unless a tuning has seeds of its own."""
        return self.tuning.seeds if self.tuning else self.training.seeds[:1]

    @property
    def keep(self) -> int | None:
        """Return how many trials run with more than the first seed; None: all."""
        return self.tuning and self.tuning.keep

    def describe_seeds(self) -> str:
        """Return the seeds of the trials, with their splits: ``seeds 100, 101 on splits 0, 1``."""
        many = "s" * (len(self.seeds) > 1)
        text = f"seed{many} {', '.join(map(str, self.seeds))}"
        on_splits = self.tuning and self.training.splits
        return text + f" on split{many} {', '.join(map(str, range(len(self.seeds))))}" * bool(on_splits)

    def trial(self, choice: Choice, number: int = 0) -> Training:
        """Return the training at a choice, as it is tried: with one seed, that of this number."""
        trial = replace(self.finals(choice)[0], seeds=(self.seeds[number],))
        if self.tuning is None:
            return trial
        split = {"dataset.split_index": number} if trial.splits else {}
        return replace(trial, splits=False, settings={**trial.settings, **split, **self.tuning.settings})

    def finals(self, choice: Choice) -> list[Training]:
        """Return the trainings at the best choice with the seeds of the experiment, the followers' too."""
        finals = []
        for follower in (Follower(self.training, {}, ""), *self.followers):
            tag = "-".join(filter(None, [self.space.tag(choice), follower.tag]))
            final = replace(
                follower.training,
                # a point of its own tells it from its siblings while it runs
                point={**follower.training.point, TAG: tag.removeprefix(f"{TAG}-")},
                settings={**follower.training.settings, **self.space.settings(choice), **follower.settings},
                tag="-".join(filter(None, [follower.training.tag, tag])),
            )
            finals.append(final)
        return finals


def load_ranges(*folders: Path) -> Ranges:
    """Return the content of all YAML files of some folders, by the id of the experiment.

    An entry is ``{source, fixed, names, tuning, searches}``; each of `searches` has

    - ``where``: axis -> values; each training at these values is searched,
    - ``factors``: name -> ``default`` and ``values``, which is a list, set into all ``keys``, or value -> settings,
    - ``also``: trainings that take over the choice: ``where``, and in what they differ, ``set`` and ``tag``.

    ``{name}`` in a setting is that of `names`: name -> axis -> value of the axis -> text. ``tuning`` is
    ``{trials, seeds, keep, set}``, see `Tuning`.

    Raises:
        ManifestError: a file is no YAML, has an unknown key, lacks one, or a default out of its range.
    """
    ranges: dict[str, Mapping[str, Any]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        for key, entry in read_yaml(file, error_type=ManifestError, empty=True).items():
            where = f"{file.name}, {key}"
            if key in ranges:
                raise ManifestError(f"{where}: its ranges are in another file already: keep one of them")
            _check_entry(entry, where)
            ranges[key] = entry
    return ranges


def searches(experiment: Experiment, ranges: Ranges) -> list[Search]:
    """Return the searches of an experiment's trainings; a `ManifestError` without ranges or if tuning is not equal."""
    if experiment.id not in ranges:
        raise ManifestError(f"{experiment.id} has no ranges to search. Experiments that have: {', '.join(ranges)}.")
    entry = ranges[experiment.id]
    listed = [
        _make_search(training, part, entry, experiment)
        for part in entry["searches"]
        for training in experiment.trainings
        if _fits(training, part["where"])
    ]
    if not listed:
        places = "; ".join(
            " ".join(f"{axis}={' | '.join(map(str, values))}" for axis, values in part["where"].items())
            for part in entry["searches"]
        )
        raise ManifestError(f"{experiment.id}: no training that was asked for has ranges. Searched are: {places}.")
    counts = Counter(search.training.folder for search in listed)
    for training in experiment.trainings if "tuning" in entry else ():
        if counts[training.folder] != 1:
            raise ManifestError(
                f"{experiment.id}: {training.folder} has ranges {counts[training.folder]} times; where all are tuned "
                "alike, each has them once: correct `where` of its ranges"
            )
        if shared := set(listed[0].seeds) & set(training.seeds):
            raise ManifestError(
                f"{experiment.id}: seed {min(shared)} of the trials is a seed of {training.folder}, too: tuning and "
                "report need different seeds"
            )
    return listed


def _check_entry(entry: Mapping[str, Any], where: str) -> None:
    check_keys(entry, ("source", "searches", "fixed", "names", "tuning"), where, needed=("source", "searches"))
    if "tuning" in entry:
        check_keys(entry["tuning"], ("trials", "seeds", "keep", "set"), f"{where}, tuning", ("trials", "seeds"))
        section(entry["tuning"], "seeds", f"{where}, tuning", list)
    for part in section(entry, "searches", where, list):
        check_keys(part, ("where", "factors", "also"), where, needed=("where", "factors"))
        for axis in section(part, "where", where):
            section(part["where"], axis, f"{where}, where", list)
        _check_factors(section(part, "factors", where), where)
        for follower in part.get("also", []):
            check_keys(follower, ("where", "set", "tag"), where, needed=("where",))


def _check_factors(factors: Mapping[str, Any], place: str) -> None:
    for name, factor in factors.items():
        where = f"{place}, factor {name}"
        check_keys(factor, ("default", "values", "keys"), where, needed=("default", "values"))
        if isinstance(factor["values"], list) != ("keys" in factor):
            raise ManifestError(f"{where}: `keys` belongs to a list of values, and to nothing else")
        values = [str(value) for value in factor["values"]]
        if not FACTOR_NAME.fullmatch(name):
            raise ManifestError(f"{where}: expected a name of letters alone, it becomes part of a folder's name")
        if wrong := [value for value in values if not VALUE_NAME.fullmatch(value)]:
            raise ManifestError(
                f"{where}: {wrong[0]!r} cannot be part of a folder's name: write a short name -> settings"
            )
        if str(factor["default"]) not in values:
            raise ManifestError(f"{where}: the default {factor['default']} is not in its range {', '.join(values)}")


def _make_search(
    training: Training, part: Mapping[str, Any], entry: Mapping[str, Any], experiment: Experiment
) -> Search:
    names = {
        name: texts[training.point[axis]]
        for name, axes in entry.get("names", {}).items()
        for axis, texts in axes.items()
        if training.point.get(axis) in texts
    }
    where = f"{experiment.id}, {' '.join(training.point.values())}"
    _check_factors(training.factors, where)
    if shared := ", ".join(sorted(part["factors"].keys() & training.factors.keys())):
        raise ManifestError(
            f"{where} has own ranges for {shared}, which are those of the row that it is like: leave them out, or give "
            "them another name"
        )
    factors = []
    for name, factor in {**part["factors"], **training.factors}.items():
        values = factor["values"]
        if isinstance(values, list):
            values = {value: dict.fromkeys(factor["keys"], value) for value in values}
        settings = {
            str(value): {key: text.format(**names) if isinstance(text, str) else text for key, text in part.items()}
            for value, part in values.items()
        }
        factors.append(Factor(name, str(factor["default"]), settings))
    followers = []
    for follower in part.get("also", []):
        fixed = [(axis, value) for axis, value in training.point.items() if axis not in follower["where"]]
        for other in experiment.trainings:
            if _fits(other, follower["where"]) and all(other.point.get(axis) == value for axis, value in fixed):
                followers.append(Follower(other, follower.get("set", {}), follower.get("tag", "")))
    tuning = entry.get("tuning")
    equal = tuning and Tuning(tuning["trials"], tuple(tuning["seeds"]), tuning.get("keep"), tuning.get("set", {}))
    return Search(training, Space(tuple(factors), entry.get("fixed", {}), entry["source"]), tuple(followers), equal)


def _fits(training: Training, where: Mapping[str, Any]) -> bool:
    point = training.like or training.point
    return all(point.get(axis) in map(str, values) for axis, values in where.items())


def coordinate_search(space: Space, scores: Mapping[str, float | None]) -> list[Choice]:
    """Return what to try next: the default, each value of one factor at a time, then the best values together.

    Sections H.3 and H.4 of the k-MIP paper. The best value of a factor is that of the largest score alone; of equals
    the default, or else the first; one that failed loses.

    Args:
        space (Space): What is searched.
        scores (Mapping): Tag of each trial that ended -> its score, larger is better; None if it failed.

    Returns:
        Choices of no trial that ended; empty at the end.
    """

    def best_value(factor: Factor) -> str:
        tried = {value: scores.get(space.tag(space.default | {factor.name: value})) for value in factor.values}
        return max([factor.default, *tried], key=lambda value: -math.inf if tried[value] is None else tried[value])

    first = [space.default] + [
        space.default | {factor.name: value}
        for factor in space.factors
        for value in factor.values
        if value != factor.default
    ]
    missing = [choice for choice in first if space.tag(choice) not in scores]
    together = {factor.name: best_value(factor) for factor in space.factors}
    return missing or ([] if space.tag(together) in scores else [together])


def draw_choices(
    space: Space, choices: Sequence[Choice], scores: Sequence[float | None], number: int, by_tpe: bool = False
) -> list[Choice]:
    """Return the next different configurations: the default, then random ones or those of TPE.

    The random ones are those with which Optuna's TPE (Bergstra et al. 2011) begins. They do not depend on scores, so
    that all spaces with the same first factors have the same values of these.

    Args:
        space (Space): What is searched.
        choices (Sequence): All that were drawn before.
        scores (Sequence): Theirs, larger is better; None of those that failed.
        number (int): How many there shall be together.
        by_tpe (bool, optional): By TPE from the eleventh on. (default: ``False``)
    """
    count = min(number, math.prod(len(factor.values) for factor in space.factors)) - len(choices)
    draws, drawn = _draw_at_random(space), []
    if by_tpe:
        count = min(count, max(RANDOM - len(choices), ROUND))
        draws = draws if len(choices) < RANDOM else _draw_by_tpe(space, choices, scores)
    for choice in itertools.islice(draws, DRAWS if count > 0 else 0):
        if choice not in [*choices, *drawn]:
            drawn.append(choice)
        if len(drawn) == count:
            break
    return drawn


def _draw_at_random(space: Space) -> Iterator[Choice]:
    import numpy as np

    yield space.default
    for seed in itertools.count(1):
        generator = np.random.RandomState(seed)
        yield {name: values[generator.uniform(size=len(values)).argmax()] for name, (_, values) in space.ranges.items()}


def _draw_by_tpe(space: Space, choices: Sequence[Choice], scores: Sequence[float | None]) -> Iterator[Choice]:
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            f"--search tpe: more than {RANDOM} trials need optuna: pip install optuna, or 'graphgps_kmip[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    ranges = {name: optuna.distributions.CategoricalDistribution(values) for name, (_, values) in space.ranges.items()}
    study = optuna.create_study(direction="maximize")
    for choice, score in zip(choices, scores, strict=True):
        if score is not None:
            study.add_trial(optuna.trial.create_trial(params=dict(choice), distributions=ranges, value=score))
    for seed in itertools.count(len(choices)):
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        yield study.ask(ranges).params
