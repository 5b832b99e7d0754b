"""Reading experiments from YAML files: every file of a folder, each a few ``experiments`` and the names they use."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.experiments.records import Command, Experiment, FigureSpec, Need, Point, TableSpec, Training
from graphgps_kmip.names import suggest


class ManifestError(ValueError):
    """A manifest that does not say what it must."""


class _Name(str):
    """A value of an axis; ``{model.file}`` in a template is its short name in files."""

    file: str


def load_manifest(folder: Path) -> dict[str, Experiment]:
    """Return all experiments of the YAML files directly in a folder, by id, in the order of files and lines.

    A file holds ``axes`` (axis -> value -> short name in file names), and ``experiments`` (id -> see
    `Experiment`; its ``trainings`` are grids, see `_trainings`).

    Raises:
        ManifestError: a file is no YAML, has a key that is not known, lacks one, repeats an id, needs something that no
            experiment has, or puts two trainings of different settings into one folder.
    """
    experiments: dict[str, Experiment] = {}
    for file in sorted(folder.glob("*.yaml")):
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        except (OSError, yaml.YAMLError) as error:
            raise ManifestError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
        _check_keys(content, {"axes", "experiments"}, str(file))
        for key, entry in content.get("experiments", {}).items():
            if key in experiments:
                raise ManifestError(f"{file}: experiment {key} is in another place already: give it another id")
            experiments[key] = _experiment(key, entry, content.get("axes", {}), f"{file.name}, {key}")
    if not experiments:
        raise ManifestError(f"{folder} holds no experiment: expected YAML files with `experiments`")
    _check(experiments)
    return experiments


def select(experiments: Mapping[str, Experiment], key: str) -> Experiment:
    """Return an experiment by id.

    Raises:
        ManifestError: there is none, with near misses.
    """
    if key not in experiments:
        raise ManifestError(f"no experiment {key!r}.{suggest(key, experiments)}")
    return experiments[key]


def narrowed(experiment: Experiment, only: Mapping[str, tuple[str, ...]], seeds: int | None = None) -> Experiment:
    """Return the experiment with fewer trainings: those at the given values of axes, and only the first seeds.

    Raises:
        ManifestError: an axis or value that no training has.
    """
    for axis, values in only.items():
        axes = {name for training in experiment.trainings for name in training.point}
        if axis not in axes:
            raise ManifestError(f"--only: {experiment.id} has no axis {axis!r}.{suggest(axis, axes)}")
        known = dict.fromkeys(one.point[axis] for one in experiment.trainings if axis in one.point)
        for value in values:
            if value not in known:
                raise ManifestError(f"--only: {axis} of {experiment.id} has no {value!r}.{suggest(value, known)}")
    kept = tuple(
        dataclasses.replace(one, seeds=_first(one.seeds, seeds))
        for one in experiment.trainings
        if all(one.point.get(axis) in values for axis, values in only.items())
    )
    return dataclasses.replace(experiment, trainings=kept)


def _first(seeds: tuple[int, ...], count: int | None) -> tuple[int, ...]:
    return seeds if count is None else tuple(range(seeds[0], seeds[0] + count))


def _experiment(key: str, entry: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Experiment:
    entry = dict(entry)
    _check_keys(entry, {field.name for field in dataclasses.fields(Experiment)} - {"id"}, where)
    grids = entry.pop("trainings", [])
    commands = {
        name: _record(
            Command, {"name": name} | one | {"needs": tuple(_need(n, key, where) for n in one.get("needs", []))}, where
        )
        for name, one in entry.pop("commands", {}).items()
    }
    return _record(
        Experiment,
        {
            "id": key,
            **entry,
            "trainings": tuple(one for grid in grids for one in _trainings(grid, axes, where)),
            "commands": commands,
            "tables": {
                name: _record(TableSpec, {"id": name} | one, where) for name, one in entry.get("tables", {}).items()
            },
            "figures": {
                name: _record(FigureSpec, {"name": name} | one, where) for name, one in entry.get("figures", {}).items()
            },
        },
        where,
    )


def _trainings(grid: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[Training]:
    """Yield the trainings of a grid: ``over`` (axis -> values or ``all``), ``cfg``, ``set``, ``tag``, ``seeds``.

    ``{axis}`` in `cfg`, `tag` and string values of `set` is the value, ``{axis.file}`` its short name; ``skip`` lists
    points that are left out; ``splits: True`` takes the seed for the split.
    """
    _check_keys(grid, {"over", "cfg", "set", "tag", "seeds", "skip", "splits"}, where)
    over = {}
    for axis, values in grid.get("over", {}).items():
        short = {str(name): str(file) for name, file in axes.get(axis, {}).items()}
        over[axis] = [_named(value, short) for value in (short if values == "all" else values)]
    seeds = grid["seeds"]
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values, strict=True))
        if any(all(point[axis] == str(value) for axis, value in one.items()) for one in grid.get("skip", [])):
            continue
        yield Training(
            point={axis: str(value) for axis, value in point.items()},
            cfg=grid["cfg"].format(**point),
            seeds=tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds),
            settings={name: _filled(value, point) for name, value in grid.get("set", {}).items()},
            tag=grid.get("tag", "").format(**point),
            splits=grid.get("splits", False),
        )


def _named(value: Any, short: Mapping[str, str]) -> _Name:
    name = _Name(value)
    name.file = short.get(str(value), str(value).lower())
    return name


def _filled(value: Any, point: Point) -> Any:
    """Fill a setting's template, and read it as YAML: ``"{k}"`` becomes a number."""
    return yaml.safe_load(value.format(**point)) if isinstance(value, str) and "{" in value else value


def _need(entry: Mapping[str, Any], key: str, where: str) -> Need:
    point = {axis: str(value) for axis, value in entry.get("point", {}).items()}
    return _record(Need, {"experiment": key} | entry | {"point": point}, where)


def _record(kind: type, entry: Mapping[str, Any], where: str) -> Any:
    names = {field.name for field in dataclasses.fields(kind)}
    _check_keys(entry, names, where)
    needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    if missing := sorted(needed - entry.keys()):
        raise ManifestError(f"{where}: {', '.join(missing)} missing in an entry of {kind.__name__}")
    tuples = {name for name, text in kind.__annotations__.items() if text.startswith("tuple")}
    return kind(**{key: tuple(value) if key in tuples else value for key, value in entry.items()})


def _check_keys(entry: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in entry:
        if key not in allowed:
            raise ManifestError(f"{where}: unknown key {key!r}.{suggest(key, allowed)}")


def _check(experiments: Mapping[str, Experiment]) -> None:
    folders: dict[str, Training] = {}
    for experiment in experiments.values():
        for training in experiment.trainings:
            other = folders.setdefault(training.folder, training)
            if (other.cfg, other.settings, other.splits) != (training.cfg, training.settings, training.splits):
                raise ManifestError(f"{experiment.id}: {training.folder} holds another training too: give it a tag")
        for need in (need for command in experiment.commands.values() for need in command.needs):
            find(experiments, need, experiment.id)


def find(experiments: Mapping[str, Experiment], need: Need, reader: str = "") -> Training | Command:
    """Return the training or command that is needed.

    Raises:
        ManifestError: there is none, or the point fits several trainings.
    """
    if need.experiment not in experiments:
        raise ManifestError(
            f"{reader} needs {need.experiment}, which does not exist.{suggest(need.experiment, experiments)}"
        )
    experiment = experiments[need.experiment]
    if need.command:
        if need.command not in experiment.commands:
            raise ManifestError(
                f"{reader} needs command {need.command} of {need.experiment}."
                f"{suggest(need.command, experiment.commands)}"
            )
        return experiment.commands[need.command]
    found = [one for one in experiment.trainings if dict(one.point) | need.point == dict(one.point)]
    if len(found) != 1:
        raise ManifestError(f"{reader} needs {dict(need.point)} of {need.experiment}, which {len(found)} trainings are")
    return found[0]
