"""Manifests: experiments read from the YAML files of a folder, with grids of trainings over named axes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.near_misses import suggest
from graphgps_kmip.common.project import train_command
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import (
    Command,
    Experiment,
    FigureSpec,
    Need,
    TableSpec,
    Training,
    as_word,
)
from graphgps_kmip.results.run_folder import check_name

WORDS = {dict: "names and what they stand for", list: "a list", str: "text", int: "a whole number"}
PARTS = ("ranges", "printed", "published")  # folders in a folder of experiments, with readers of their own
KINDS = {"str": str, "int": int, "tuple": list, "Mapping": dict}  # annotation of a field -> what YAML makes of it


def load_manifest(*folders: Path) -> dict[str, Experiment]:
    """Return all experiments of the YAML files directly in some folders, by id, in the order of files and lines.

    A file holds ``axes`` (axis -> value -> short name in file names), ``experiments`` (id -> see `Experiment`; its
    ``trainings`` are grids, see `trainings`), and ``rows`` (id -> name -> see `with_row`), which are added to an
    experiment of any file.

    Raises:
        ManifestError: a file is no YAML, is where none is read, has a key that is not known, lacks one, repeats an id,
            needs something that no experiment has, or puts two trainings of different settings into one folder.
    """
    experiments: dict[str, Experiment] = {}
    rows: list[tuple[str, str, Mapping[str, Any], str]] = []
    for file in (file for folder in folders for file in _files(folder)):
        content = read_yaml(file, error_type=ManifestError, empty=True)
        check_keys(content, ("axes", "experiments", "rows"), str(file))
        axes = section(content, "axes", str(file))
        for key, entry in section(content, "experiments", str(file)).items():
            if key in experiments:
                raise ManifestError(f"{file}: experiment {key} is in another place already: give it another id")
            experiments[key] = _experiment(str(key), entry, axes, f"{file.name}, {key}")
        added = section(content, "rows", str(file))
        for key in added:
            entries = section(added, key, f"{file.name}, rows")
            rows += [(key, str(name), entry, f"{file.name}, rows, {key}, {name}") for name, entry in entries.items()]
    for key, name, entry, where in rows:
        if key not in experiments:
            raise ManifestError(f"{where}: no experiment {key!r}.{suggest(key, experiments)}")
        experiments[key] = with_row(experiments[key], name, entry, where)
    if not experiments:
        where = " and ".join(map(str, folders))
        raise ManifestError(f"{where} holds no experiment: expected YAML files with `experiments`")
    _check(experiments)
    return with_members(experiments)


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that hold experiments."""
    places = (folder, *(folder / part for part in PARTS))
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() in (".yaml", ".yml") and (file.suffix != ".yaml" or file.parent not in places):
            raise ManifestError(
                f"{file} is not read: move it to {folder / f'{file.stem}.yaml'}, or ranges of a search to "
                f"{folder / PARTS[0]}"
            )
    return sorted(folder.glob("*.yaml"))


def with_row(experiment: Experiment, name: str, entry: Mapping[str, Any], where: str) -> Experiment:
    """Return an experiment with one more row: the trainings of a row of it, with other settings.

    Args:
        experiment (Experiment): of any file.
        name (str): of the new row, a value of the axis that the other one is a value of.
        entry (Mapping): ``like``, the row whose config, seeds and ranges it has; ``set``, its own settings; and
            ``factors``, ranges of its own beside those, as in `search_space.load_ranges`.
        where (str): begins messages.

    Raises:
        ManifestError: there is no such row, one of this name is there already, or the experiment is made of others.
    """
    check_keys(entry, ("like", "set", "factors"), where, needed=("like",))
    like, settings, factors = entry["like"], section(entry, "set", where), section(entry, "factors", where)
    if experiment.of:
        raise ManifestError(f"{where}: {experiment.id} is made of others: add the row to {' or '.join(experiment.of)}")
    known = dict.fromkeys(value for one in experiment.trainings for value in one.point.values())
    _check_value(like, known, f"{where}: {experiment.id}")
    if name in known:
        raise ManifestError(f"{where}: {experiment.id} has {name} already: give the row another name")
    ending = re.sub(r"[^\w.]+", "-", name).strip("-")
    added = tuple(
        dataclasses.replace(
            one,
            point={axis: name if value == like else value for axis, value in one.point.items()},
            settings={**one.settings, **settings},
            tag="-".join(filter(None, (one.tag, ending))),
            like=one.point,
            factors=factors,
        )
        for one in experiment.trainings
        if like in one.point.values()
    )
    words = ", ".join(f"{key} {as_word(value)}" for key, value in settings.items())
    note = f"{name} is a row that was added, as {like}{f' with {words}' if words else ''}."
    notes = (*experiment.notes, note)
    return dataclasses.replace(experiment, trainings=(*experiment.trainings, *added), notes=notes)


def with_members(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Give each experiment that is made of others their trainings, and searches and published runs of these.

    Raises:
        ManifestError: one of them does not exist, or is made of others itself.
    """
    return {key: _joined(one, experiments) if one.of else one for key, one in experiments.items()}


def _joined(experiment: Experiment, experiments: Mapping[str, Experiment]) -> Experiment:
    members = [select(experiments, key) for key in experiment.of]
    for one in members:
        if one.of:
            raise ManifestError(f"{experiment.id}: {one.id} is made of others itself: name those")
    searched = [one.searched for one in members]
    return dataclasses.replace(
        experiment,
        trainings=tuple(training for one in members for training in one.trainings),
        searched=None if None in searched else {key: record for one in searched for key, record in one.items()},
        published={key: runs for one in members for key, runs in one.published.items()},
    )


def select(experiments: Mapping[str, Experiment], key: str) -> Experiment:
    """Return an experiment by id.

    Raises:
        ManifestError: there is none, with near misses.
    """
    if key not in experiments:
        if key.endswith((".yaml", ".yml")):
            what = "is a file" if Path(key).is_file() else "no such file"
            raise ManifestError(
                f"{key}: {what}, and no experiment has this id: `list` names the experiments, "
                f"`{train_command()} --cfg FILE` trains a single config"
            )
        near = [one for one in experiments if key.lower() in one.lower()]
        raise ManifestError(f"no experiment {key!r}.{suggest(key, near or experiments)}")
    return experiments[key]


def narrowed(experiment: Experiment, only: Mapping[str, tuple[str, ...]], seeds: int | None = None) -> Experiment:
    """Return the experiment with fewer trainings: those at the given values of axes, and only the first seeds.

    Raises:
        ManifestError: an axis or value that no training has.
    """
    for axis, values in only.items():
        axes = {name for training in experiment.trainings for name in training.point}
        if axis not in axes:
            near = suggest(axis, axes) if axes else " It has no trainings."
            raise ManifestError(f"--only: {experiment.id} has no axis {axis!r}.{near}")
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
    further = range(max(seeds) + 1, max(seeds) + 1 + (count or 0))
    return seeds if count is None else (*seeds, *further)[:count]


def _experiment(key: str, entry: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Experiment:
    found = {"id", "searched", "published"}  # what is not written
    check_keys(entry, {field.name for field in dataclasses.fields(Experiment)} - found, where)
    if "of" in entry and (own := [name for name in ("trainings", "commands", "tables") if name in entry]):
        raise ManifestError(f"{where}: made of others (`of`), it has no {' and '.join(own)} of its own: leave them out")
    grids = section(entry, "trainings", where, list)
    made = {
        "trainings": [one for grid in grids for one in trainings(grid, axes, where)],
        "commands": _named(Command, "name", entry, "commands", where),
        "tables": _named(TableSpec, "id", entry, "tables", where),
        "figures": _named(FigureSpec, "name", entry, "figures", where),
    }
    made["commands"] = {
        name: dataclasses.replace(one, needs=tuple(_need(need, one.of or key, where) for need in one.needs))
        for name, one in made["commands"].items()
    }
    return _record(Experiment, {"id": key, **entry, **made}, where)


def _named(kind: type, name_field: str, entry: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return the records of a section, which stand by name."""
    found = section(entry, key, where)
    return {name: _record(kind, {name_field: name, **section(found, name, where)}, where) for name in found}


def _need(entry: Mapping[str, Any], key: str, where: str) -> Need:
    check_keys(entry, [one.name for one in dataclasses.fields(Need)], f"{where}, Need")
    point = {axis: str(value) for axis, value in section(entry, "point", where).items()}
    return Need(**{"experiment": key} | entry | {"point": point})


def _record(kind: type, entry: Mapping[str, Any], where: str) -> Any:
    fields = dataclasses.fields(kind)
    needed = [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING]
    check_keys(entry, [one.name for one in fields], f"{where}, {kind.__name__}", needed)
    kinds = {name: KINDS[text.partition("[")[0]] for name, text in kind.__annotations__.items()}
    checked = {key: section(entry, key, where, kinds[key]) for key in entry}
    return kind(**{key: tuple(value) if kinds[key] is list else value for key, value in checked.items()})


def _check(experiments: Mapping[str, Experiment]) -> None:
    folders: dict[str, Training] = {}
    for experiment in experiments.values():
        for command in experiment.commands.values():
            check_name(command.name, f"{experiment.id}: the name of a command")
        for training in experiment.trainings:
            check_name(training.tag, f"{experiment.id}: tag")
            other = folders.setdefault(training.folder, training)
            if dataclasses.replace(training, point=other.point, seeds=other.seeds) != other:
                raise ManifestError(f"{experiment.id}: {training.folder} holds another training too: give it a tag")
        for command in experiment.commands.values():
            for need in command.needs:
                find(experiments, need, experiment.id)
            if command.of:
                _check_shared(command, find(experiments, Need(command.of, command=command.name), experiment.id))


def _check_shared(command: Command, owner: Command) -> None:
    if owner != dataclasses.replace(command, of=""):
        raise ManifestError(f"command {command.name} of {command.of} is another one: what shares it must be the same")


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
        point = ", ".join(f"{axis} {value}" for axis, value in need.point.items()) or "a training"
        raise ManifestError(
            f"{reader} needs {point} of {need.experiment}: {len(found)} trainings fit, expected one: name each axis"
        )
    return found[0]


KEYS = ("over", "cfg", "set", "tag", "seeds", "skip", "splits", "seeded")
Point = dict[str, "_Name"]


class _Name(str):
    """A value of an axis; ``{model.file}`` in a template is its short name in files."""

    file: str


def trainings(grid: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[Training]:
    """Yield the trainings of a grid: ``over`` (axis -> values or ``all``), ``cfg``, ``set``, ``tag``, ``seeds``.

    ``{axis}`` in `cfg`, `tag` and string values of `set` is the value, ``{axis.file}`` its short name; ``skip`` lists
    points that are left out; ``splits: True`` takes the seed for the split, ``seeded`` lists further keys that take
    it. `axes` is axis -> value -> short name; `where` begins messages.

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
            seeded=tuple(section(grid, "seeded", where, list)),
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


def section(entry: Mapping[Any, Any], key: Any, where: str, kind: type = dict) -> Any:
    """Return the value of a key, a mapping unless `kind` says otherwise; empty if there is none.

    Raises:
        ManifestError: it is of another type.
    """
    content = entry.get(key)
    if content is None:
        return kind()
    if not isinstance(content, kind):
        raise ManifestError(f"{where}, {key}: expected {WORDS[kind]}, found {content!r}")
    return content


def check_keys(entry: Mapping[str, Any], allowed: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Check the keys of an entry.

    Raises:
        ManifestError: one that is not known, with near misses, or one that is missing.
    """
    if not isinstance(entry, Mapping):
        raise ManifestError(f"{where}: expected keys and values, found {entry!r}")
    allowed = set(allowed)
    for key in entry:
        if key not in allowed:
            raise ManifestError(f"{where}: unknown key {key!r}.{suggest(key, allowed)}")
    if missing := [key for key in needed if key not in entry]:
        raise ManifestError(f"{where}: {', '.join(missing)} missing")
