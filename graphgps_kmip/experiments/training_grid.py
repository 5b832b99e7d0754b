"""Trainings of a manifest: grids over axes, and templates that each point fills."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.yaml_files import ManifestError, check_keys, section

KEYS = ("over", "cfg", "set", "tag", "seeds", "skip", "splits")
Point = dict[str, "_Name"]


class _Name(str):
    """A value of an axis; ``{model.file}`` in a template is its short name in files."""

    file: str


def trainings(grid: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[Training]:
    """Yield the trainings of a grid: ``over`` (axis -> values or ``all``), ``cfg``, ``set``, ``tag``, ``seeds``.

    ``{axis}`` in `cfg`, `tag` and string values of `set` is the value, ``{axis.file}`` its short name; ``skip`` lists
    points that are left out; ``splits: True`` takes the seed for the split.

    Args:
        grid: as in the file.
        axes: axis -> value -> short name in file names.
        where: for messages.

    Raises:
        ManifestError: an axis or value that is not known, or an entry that is missing.
    """
    check_keys(grid, KEYS, where, needed=("cfg", "seeds"))
    over = {axis: _values(axis, chosen, axes, where) for axis, chosen in section(grid, "over", where).items()}
    skipped = section(grid, "skip", where, list)
    for point in skipped:
        check_keys(point, over, f"{where}, skip")
        for axis, value in point.items():
            _check_value(str(value), over[axis], f"{where}, skip: {axis}")
    seeds = range(grid["seeds"]) if isinstance(grid["seeds"], int) else section(grid, "seeds", where, list)
    if not seeds:
        raise ManifestError(f"{where}: seeds: expected how many, or a list of them, found {grid['seeds']!r}")
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values, strict=True))
        if any(all(point[axis] == str(value) for axis, value in one.items()) for one in skipped):
            continue
        filled = _filler(point, where)
        yield Training(
            point={axis: str(value) for axis, value in point.items()},
            cfg=filled(section(grid, "cfg", where, str)),
            seeds=tuple(seeds),
            settings={name: _setting(value, filled) for name, value in section(grid, "set", where).items()},
            tag=filled(section(grid, "tag", where, str)),
            splits=grid.get("splits", False),
        )


def _values(axis: str, chosen: Any, axes: Mapping[str, Any], where: str) -> list[_Name]:
    """Return the values of an axis; one without short names in `axes` takes any."""
    short = {str(name): str(file) for name, file in section(axes, axis, f"{where}, axes").items()}
    if chosen == "all" and not short:
        raise ManifestError(f"{where}: axis {axis!r} has no values for `all`.{suggest(axis, axes)}")
    if chosen != "all" and not isinstance(chosen, list):
        raise ManifestError(f"{where}: axis {axis}: expected a list of values or `all`, found {chosen!r}")
    names = []
    for value in short if chosen == "all" else chosen:
        if short:
            _check_value(str(value), short, f"{where}: axis {axis}")
        name = _Name(value)
        name.file = short.get(name, name.lower())
        names.append(name)
    return names


def _check_value(value: str, known: Any, where: str) -> None:
    if value not in known:
        raise ManifestError(f"{where} has no {value!r}.{suggest(value, known)}")


def _filler(point: Point, where: str) -> Callable[[str], str]:
    def filled(template: str) -> str:
        try:
            return template.format(**point)
        except KeyError as error:
            raise ManifestError(f"{where}: {template!r}: no axis {error}.{suggest(error.args[0], point)}") from error
        except (AttributeError, IndexError, ValueError) as error:
            raise ManifestError(f"{where}: {template!r}: expected {{axis}} or {{axis.file}}: {error}") from error

    return filled


def _setting(value: Any, filled: Callable[[str], str]) -> Any:
    """Fill a setting's template, and read it as YAML: ``"{k}"`` becomes a number."""
    return yaml.safe_load(filled(value)) if isinstance(value, str) and "{" in value else value
