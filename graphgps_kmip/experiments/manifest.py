"""Reading experiments from YAML files: every file of a folder, each a few ``experiments`` and the names they use."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.experiments.grids import trainings
from graphgps_kmip.experiments.reading import ManifestError, check_keys, read_yaml
from graphgps_kmip.experiments.records import Command, Experiment, FigureSpec, Need, TableSpec, Training
from graphgps_kmip.names import suggest

__all__ = ["ManifestError", "find", "load_manifest", "narrowed", "select"]


def load_manifest(folder: Path) -> dict[str, Experiment]:
    """Return all experiments of the YAML files directly in a folder, by id, in the order of files and lines.

    A file holds ``axes`` (axis -> value -> short name in file names), and ``experiments`` (id -> see
    `Experiment`; its ``trainings`` are grids, see `grids.trainings`).

    Raises:
        ManifestError: a file is no YAML, has a key that is not known, lacks one, repeats an id, needs something that no
            experiment has, or puts two trainings of different settings into one folder.
    """
    experiments: dict[str, Experiment] = {}
    for file in sorted(folder.glob("*.yaml")):
        content = read_yaml(file)
        check_keys(content, ("axes", "experiments"), str(file))
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
    check_keys(entry, {field.name for field in dataclasses.fields(Experiment)} - {"id"}, where)
    entry = dict(entry)
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
            "trainings": tuple(one for grid in grids for one in trainings(grid, axes, where)),
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


def _need(entry: Mapping[str, Any], key: str, where: str) -> Need:
    point = {axis: str(value) for axis, value in entry.get("point", {}).items()}
    return _record(Need, {"experiment": key} | entry | {"point": point}, where)


def _record(kind: type, entry: Mapping[str, Any], where: str) -> Any:
    fields = dataclasses.fields(kind)
    needed = [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING]
    check_keys(entry, [one.name for one in fields], f"{where}, {kind.__name__}", needed)
    tuples = {name for name, text in kind.__annotations__.items() if text.startswith("tuple")}
    return kind(**{key: tuple(value) if key in tuples else value for key, value in entry.items()})


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
