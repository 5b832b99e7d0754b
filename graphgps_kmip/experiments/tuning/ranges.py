"""The ranges of hyper-parameter searches, read from YAML files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.search_space import Factor, Follower, Search, Space
from graphgps_kmip.experiments.yaml_files import ManifestError, check_keys, read_yaml, section

Ranges = Mapping[str, Mapping[str, Any]]  # id of an experiment -> its entry in a YAML file
# Both become part of a folder's name. A factor of letters alone keeps k1 = 5 and k = 15 apart.
FACTOR_NAME, VALUE_NAME = re.compile(r"[A-Za-z]+"), re.compile(r"[\w.+-]+")


def load_ranges(folder: Path) -> Ranges:
    """Return what all YAML files of a folder say, by the id of the experiment.

    An entry is ``{source, fixed, names, searches}``; each of `searches` has

    - ``where``: axis -> values; the trainings at these are searched, each for itself,
    - ``factors``: name -> ``default`` and ``values``, which is a list, set into all ``keys``, or value -> settings,
    - ``also``: those who take over what is found, ``where`` and what they have otherwise, ``set`` and ``tag``.

    ``{name}`` in a setting is that of `names`: name -> axis -> value of the axis -> text.

    Raises:
        ManifestError: a file is no YAML, has a key that is not known, lacks one, or a default out of its range.
    """
    ranges: dict[str, Mapping[str, Any]] = {}
    for file in sorted(folder.glob("*.yaml")):
        for key, entry in read_yaml(file).items():
            where = f"{file.name}, {key}"
            if key in ranges:
                raise ManifestError(f"{where}: its ranges stand in another place already: keep one of them")
            _check(entry, where)
            ranges[key] = entry
    return ranges


def searches(experiment: Experiment, ranges: Ranges) -> list[Search]:
    """Return the searches of an experiment: those of its trainings that have ranges.

    Raises:
        ManifestError: the experiment has no ranges, or none of the trainings that it was narrowed to.
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
        known = "; ".join(_words(one["where"]) for one in entry["searches"])
        raise ManifestError(f"{experiment.id}: nothing of what was asked for is searched. Searched are: {known}.")
    return found


def _check(entry: Mapping[str, Any], where: str) -> None:
    check_keys(entry, ("source", "searches", "fixed", "names"), where, needed=("source", "searches"))
    for one in section(entry, "searches", where, list):
        check_keys(one, ("where", "factors", "also"), where, needed=("where", "factors"))
        for axis in section(one, "where", where):
            section(one["where"], axis, f"{where}, where", list)
        for name, factor in section(one, "factors", where).items():
            _check_factor(name, factor, f"{where}, factor {name}")
        for follower in one.get("also", []):
            check_keys(follower, ("where", "set", "tag"), where, needed=("where",))


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
    factors = tuple(_factor(name, factor, names) for name, factor in one["factors"].items())
    followers = tuple(
        Follower(other, follower.get("set", {}), follower.get("tag", ""))
        for follower in one.get("also", [])
        for other in _alike(training, follower["where"], experiment)
    )
    return Search(training, Space(factors, entry.get("fixed", {}), entry["source"]), followers)


def _alike(training: Training, where: Mapping[str, Any], experiment: Experiment) -> Iterator[Training]:
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
    return all(training.point.get(axis) in map(str, values) for axis, values in where.items())


def _words(where: Mapping[str, Any]) -> str:
    return " ".join(f"{axis}={' | '.join(map(str, values))}" for axis, values in where.items())
