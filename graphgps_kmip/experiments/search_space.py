"""Search spaces of hyper-parameter searches: factors with named values, and their YAML files below ``ranges/``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.manifest import check_keys, section

Choice = Mapping[str, str]  # factor -> name of its value
Ranges = Mapping[str, Mapping[str, Any]]  # id of an experiment -> its entry in a YAML file
TAG = "search"
# Both become part of a folder's name. A factor of letters alone keeps k1 = 5 and k = 15 apart.
FACTOR_NAME, VALUE_NAME = re.compile(r"[A-Za-z]+"), re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class Factor:
    """One hyper-parameter.

    Args:
        name (str): Letters.
        default (str): Name of the value to start from.
        values (Mapping): Name -> settings, in the order in which they are tried. One value may set several keys.
    """

    name: str
    default: str
    values: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Space:
    """All combinations of the values of some factors.

    Args:
        factors (tuple): In the order of the folder's name.
        fixed (Mapping, optional): Settings of every configuration. (default: ``{}``)
        source (str, optional): Where the ranges are from. (default: ``""``)
    """

    factors: tuple[Factor, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

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


@dataclass(frozen=True)
class Follower:
    """A training that takes over the choice found for another one, and what differs: settings, end of the name."""

    training: Training
    settings: Mapping[str, Any]
    tag: str


@dataclass(frozen=True)
class Tuning:
    """Equal tuning: all trainings of an experiment are searched alike, and their rows are what the searches choose.

    Args:
        trials (int): Of each training, failed ones counted.
        seed (int): Of the trials, and of no reported run.
        settings (Mapping, optional): Of the trials alone, such as the split that they choose on. (default: ``{}``)
    """

    trials: int
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """One training whose hyper-parameters are searched.

    Args:
        training (Training): Without what is searched.
        space (Space): What is searched.
        followers (tuple, optional): Trainings that take over the choice. (default: ``()``)
        tuning (Tuning, optional): How, where all models are tuned alike. (default: ``None``)
    """

    training: Training
    space: Space
    followers: tuple[Follower, ...] = ()
    tuning: Tuning | None = None

    @property
    def seed(self) -> int:
        """Return the seed of the trials: the first of the experiment, unless a tuning has one of its own."""
        return self.tuning.seed if self.tuning else self.training.seeds[0]

    def trial(self, choice: Choice) -> Training:
        """Return the training at a choice, as it is tried: with one seed."""
        tried = replace(self._at(choice), seeds=(self.seed,))
        if self.tuning is None:
            return tried
        return replace(tried, splits=False, settings={**tried.settings, **self.tuning.settings})

    def _at(self, choice: Choice) -> Training:
        return _tagged(self.training, self.space.settings(choice), self.space.tag(choice))

    def finals(self, choice: Choice) -> list[Training]:
        """Return the trainings at the best choice with the seeds of the experiment, the followers' too."""
        finals = [self._at(choice)]
        for one in self.followers:
            tag = "-".join(filter(None, [self.space.tag(choice), one.tag]))
            finals.append(_tagged(one.training, self.space.settings(choice) | one.settings, tag))
        return finals


def load_ranges(*folders: Path) -> Ranges:
    """Return the content of all YAML files of some folders, by the id of the experiment.

    An entry is ``{source, fixed, names, tuning, searches}``; each of `searches` has

    - ``where``: axis -> values; each training at these values is searched,
    - ``factors``: name -> ``default`` and ``values``, which is a list, set into all ``keys``, or value -> settings,
    - ``also``: trainings that take over the choice: ``where``, and in what they differ, ``set`` and ``tag``.

    ``{name}`` in a setting is that of `names`: name -> axis -> value of the axis -> text. ``tuning`` is
    ``{trials, seed, set}``, see `Tuning`.

    Raises:
        ManifestError: a file is no YAML, has an unknown key, lacks one, or a default out of its range.
    """
    ranges: dict[str, Mapping[str, Any]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        for key, entry in read_yaml(file, error_type=ManifestError, empty=True).items():
            where = f"{file.name}, {key}"
            if key in ranges:
                raise ManifestError(f"{where}: its ranges are in another file already: keep one of them")
            _check(entry, where)
            ranges[key] = entry
    return ranges


def searches(experiment: Experiment, ranges: Ranges) -> list[Search]:
    """Return the searches of an experiment: those of its trainings that have ranges.

    Raises:
        ManifestError: the experiment has no ranges, or none of the trainings that it was narrowed to; of equal tuning,
            a training is not searched once, or reports the seed of the trials.
    """
    if experiment.id not in ranges:
        raise ManifestError(f"{experiment.id} has no ranges to search. Experiments that have: {', '.join(ranges)}.")
    entry = ranges[experiment.id]
    found = [
        _search(training, one, entry, experiment)
        for one in entry["searches"]
        for training in experiment.trainings
        if _fits(training, one["where"])
    ]
    if not found:
        known = "; ".join(
            " ".join(f"{axis}={' | '.join(map(str, values))}" for axis, values in one["where"].items())
            for one in entry["searches"]
        )
        raise ManifestError(f"{experiment.id}: no training that was asked for has ranges. Searched are: {known}.")
    if found[0].tuning:
        _check_tuning(found, experiment)
    return found


def _check_tuning(found: list[Search], experiment: Experiment) -> None:
    """Refuse trainings that are tuned more or less than others, and trials among the runs that are reported."""
    counts = Counter(search.training.folder for search in found)
    for training in experiment.trainings:
        if counts[training.folder] != 1:
            raise ManifestError(
                f"{experiment.id}: {training.folder} has ranges {counts[training.folder]} times; where all are tuned "
                "alike, each has them once: correct `where` of its ranges"
            )
        if found[0].seed in training.seeds:
            raise ManifestError(
                f"{experiment.id}: seed {found[0].seed} of the trials is a seed of {training.folder}, too: tuning and "
                "report need different seeds"
            )


def _tagged(training: Training, settings: Mapping[str, Any], tag: str) -> Training:
    return replace(
        training,
        point={**training.point, TAG: tag.removeprefix(f"{TAG}-")},  # tells it from its siblings while it runs
        settings={**training.settings, **settings},
        tag="-".join(filter(None, [training.tag, tag])),
    )


def _check(entry: Mapping[str, Any], where: str) -> None:
    check_keys(entry, ("source", "searches", "fixed", "names", "tuning"), where, needed=("source", "searches"))
    if "tuning" in entry:
        check_keys(section(entry, "tuning", where), ("trials", "seed", "set"), f"{where}, tuning", ("trials", "seed"))
        for key in ("trials", "seed"):
            section(entry["tuning"], key, f"{where}, tuning", int)
    for one in section(entry, "searches", where, list):
        check_keys(one, ("where", "factors", "also"), where, needed=("where", "factors"))
        for axis in section(one, "where", where):
            section(one["where"], axis, f"{where}, where", list)
        _check_factors(section(one, "factors", where), where)
        for follower in one.get("also", []):
            check_keys(follower, ("where", "set", "tag"), where, needed=("where",))


def _check_factors(factors: Mapping[str, Any], where: str) -> None:
    for name, factor in factors.items():
        _check_factor(name, factor, f"{where}, factor {name}")


def _check_factor(name: str, entry: Mapping[str, Any], where: str) -> None:
    check_keys(entry, ("default", "values", "keys"), where, needed=("default", "values"))
    listed = isinstance(entry["values"], list)
    if not listed:
        section(entry, "values", where)
    if listed != ("keys" in entry):
        raise ManifestError(f"{where}: `keys` belongs to a list of values, and to nothing else")
    values = [str(value) for value in entry["values"]]
    if not FACTOR_NAME.fullmatch(name):
        raise ManifestError(f"{where}: expected a name of letters alone, it becomes part of a folder's name")
    for value in values:
        if not VALUE_NAME.fullmatch(value):
            raise ManifestError(f"{where}: {value!r} cannot be part of a folder's name: write a short name -> settings")
    if str(entry["default"]) not in values:
        raise ManifestError(f"{where}: the default {entry['default']} is not in its range {', '.join(values)}")


def _search(training: Training, one: Mapping[str, Any], entry: Mapping[str, Any], experiment: Experiment) -> Search:
    names = {
        name: texts[training.point[axis]]
        for name, axes in entry.get("names", {}).items()
        for axis, texts in axes.items()
        if training.point.get(axis) in texts
    }
    _check_factors(training.factors, f"{experiment.id}, {' '.join(training.point.values())}")
    if again := ", ".join(sorted(one["factors"].keys() & training.factors.keys())):
        raise ManifestError(
            f"{experiment.id}: {' '.join(training.point.values())} has own ranges for {again}, which are those of the "
            "row that it is like: leave them out, or give them another name"
        )
    factors = tuple(_factor(name, factor, names) for name, factor in {**one["factors"], **training.factors}.items())
    followers = tuple(
        Follower(other, follower.get("set", {}), follower.get("tag", ""))
        for follower in one.get("also", [])
        for other in _siblings(training, follower["where"], experiment)
    )
    tuning = entry.get("tuning")
    how = tuning and Tuning(tuning["trials"], tuning["seed"], tuning.get("set", {}))
    return Search(training, Space(factors, entry.get("fixed", {}), entry["source"]), followers, how)


def _siblings(training: Training, where: Mapping[str, Any], experiment: Experiment) -> Iterator[Training]:
    """Yield the trainings that differ from one in the axes of `where` only."""
    for other in experiment.trainings:
        same = all(other.point.get(axis) == value for axis, value in training.point.items() if axis not in where)
        if same and _fits(other, where):
            yield other


def _factor(name: str, entry: Mapping[str, Any], names: Mapping[str, str]) -> Factor:
    values = entry["values"]
    if isinstance(values, list):
        values = {value: dict.fromkeys(entry["keys"], value) for value in values}
    filled = {
        str(value): {key: _filled(text, names, name) for key, text in settings.items()}
        for value, settings in values.items()
    }
    return Factor(name, str(entry["default"]), filled)


def _filled(value: Any, names: Mapping[str, str], factor: str) -> Any:
    try:
        return value.format(**names) if isinstance(value, str) else value
    except KeyError as error:
        raise ManifestError(
            f"factor {factor}: {value!r} has no name {error} at this training: add it to names"
        ) from error


def _fits(training: Training, where: Mapping[str, Any]) -> bool:
    point = training.like or training.point
    return all(point.get(axis) in map(str, values) for axis, values in where.items())
