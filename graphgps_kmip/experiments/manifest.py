"""Manifests: experiments read from the YAML files of a folder, with grids of trainings over named axes.

Also the numbers in the papers' tables, read from ``run/experiments/printed/<paper>.yaml``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.common.environment import train_command
from graphgps_kmip.common.near_misses import suggest
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

EXPECTED = {dict: "names and what they stand for", list: "a list", str: "text", int: "a whole number"}
KINDS = {"str": str, "int": int, "tuple": list, "Mapping": dict}  # annotation of a field -> what YAML makes of it
SECTIONS = {"commands": (Command, "name"), "tables": (TableSpec, "id"), "figures": (FigureSpec, "name")}
TABLE_KEYS = ("title", "hardware", "seeds", "columns", "rows", "quoted", "notes")
NUMBER = re.compile(r"(-?[\d.]+)(k?)(?: ± ([\d.]+))?$")  # 114k is 114000
GRID_KEYS = ("over", "cfg", "set", "tag", "seeds", "skip", "splits", "seeded")


def load_manifest(*folders: Path) -> dict[str, Experiment]:
    """Return all experiments of the YAML files directly in some folders, by id, in the order of files and lines.

    A file holds ``axes`` (axis -> value -> short name in file names), ``experiments`` (id -> see `Experiment`; its
    ``trainings`` are grids, see `expand_grid`), and ``rows`` (id -> name -> see `with_row`).

    Raises:
        ManifestError: a file is no YAML, has an unknown key, lacks one, repeats an id, needs something that no
            experiment has, or puts two trainings of different settings into one folder.
    """
    experiments: dict[str, Experiment] = {}
    rows: list[tuple[str, str, Mapping[str, Any], str]] = []
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        content = read_yaml(file, error_type=ManifestError, empty=True)
        check_keys(content, ("axes", "experiments", "rows"), str(file))
        axes = section(content, "axes", str(file))
        for key, entry in section(content, "experiments", str(file)).items():
            if key in experiments:
                raise ManifestError(f"{file}: experiment {key} is in another place already: give it another id")
            experiments[key] = _read_experiment(str(key), entry, axes, f"{file.name}, {key}")
        for key, entries in section(content, "rows", str(file)).items():
            rows += [(key, str(name), entry, f"{file.name}, rows, {key}, {name}") for name, entry in entries.items()]
    for key, name, entry, where in rows:
        if key not in experiments:
            raise ManifestError(f"{where}: no experiment {key!r}.{suggest(key, experiments)}")
        experiments[key] = with_row(experiments[key], name, entry, where)
    if not experiments:
        where = " and ".join(map(str, folders))
        raise ManifestError(f"{where} holds no experiment: expected YAML files with `experiments`")
    _check_experiments(experiments)
    return with_members(experiments)


def with_row(experiment: Experiment, name: str, entry: Mapping[str, Any], where: str) -> Experiment:
    """Return an experiment with one more row, `name`: the trainings of a row of it, with other settings.

    Entries are ``like``, the row whose config, seeds and ranges it has; ``set``, its own settings; and ``factors``, its
    own ranges next to those, as in `search_space.load_ranges`. `where` begins messages.

    Raises:
        ManifestError: there is no such row, one of this name is there already, or the experiment is made of others.
    """
    check_keys(entry, ("like", "set", "factors"), where, needed=("like",))
    like, settings, factors = entry["like"], section(entry, "set", where), section(entry, "factors", where)
    if experiment.of:
        raise ManifestError(f"{where}: {experiment.id} is made of others: add the row to {' or '.join(experiment.of)}")
    names = dict.fromkeys(value for training in experiment.trainings for value in training.point.values())
    check_value(like, names, f"{where}: {experiment.id}")
    if name in names:
        raise ManifestError(f"{where}: {experiment.id} has {name} already: give the row another name")
    ending = re.sub(r"[^\w.]+", "-", name).strip("-")
    added = tuple(
        dataclasses.replace(
            training,
            point={axis: name if value == like else value for axis, value in training.point.items()},
            settings={**training.settings, **settings},
            tag="-".join(filter(None, (training.tag, ending))),
            like=training.point,
            factors=factors,
        )
        for training in experiment.trainings
        if like in training.point.values()
    )
    changes = ", ".join(f"{key} {as_word(value)}" for key, value in settings.items())
    note = f"{name} is a row that was added, as {like}{f' with {changes}' if changes else ''}."
    notes = (*experiment.notes, note)
    return dataclasses.replace(experiment, trainings=(*experiment.trainings, *added), notes=notes)


def with_members(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Give each experiment that is made of others their trainings, and searches and published runs of these."""
    complete = dict(experiments)
    for key, experiment in experiments.items():
        if members := [select(experiments, name) for name in experiment.of]:
            searched = [member.searched for member in members]
            complete[key] = dataclasses.replace(
                experiment,
                trainings=tuple(training for member in members for training in member.trainings),
                searched=None if None in searched else {name: part[name] for part in searched for name in part},
                published={name: runs for member in members for name, runs in member.published.items()},
            )
    return complete


def select(experiments: Mapping[str, Experiment], key: str) -> Experiment:
    """Return an experiment by id; a `ManifestError` with near misses if there is none."""
    if key not in experiments:
        if key.endswith((".yaml", ".yml")):
            what = "is a file" if Path(key).is_file() else "no such file"
            raise ManifestError(
                f"{key}: {what}, and no experiment has this id: `list` names the experiments, "
                f"`{train_command()} --cfg FILE` trains a single config"
            )
        near = [name for name in experiments if key.lower() in name.lower()]
        raise ManifestError(f"no experiment {key!r}.{suggest(key, near or experiments)}")
    return experiments[key]


def _read_experiment(key: str, entry: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Experiment:
    unwritten = {"id", "searched", "published"}
    check_keys(entry, {field.name for field in dataclasses.fields(Experiment)} - unwritten, where)
    parts: dict[str, Any] = {}
    grids = section(entry, "trainings", where, list)
    parts["trainings"] = [training for grid in grids for training in expand_grid(grid, axes, where)]
    for name, (kind, id_field) in SECTIONS.items():
        entries = section(entry, name, where)
        parts[name] = {
            part: _read_record(kind, {id_field: part, **section(entries, part, where)}, where) for part in entries
        }
    for name, command in parts["commands"].items():
        needs = []
        for need in command.needs:
            check_keys(need, [field.name for field in dataclasses.fields(Need)], f"{where}, Need")
            point = {axis: str(value) for axis, value in section(need, "point", where).items()}
            needs.append(Need(**{"experiment": command.of or key} | need | {"point": point}))
        parts["commands"][name] = dataclasses.replace(command, needs=tuple(needs))
    return _read_record(Experiment, {"id": key, **entry, **parts}, where)


def _read_record(kind: type, entry: Mapping[str, Any], where: str) -> Any:
    fields = dataclasses.fields(kind)
    needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    check_keys(entry, [field.name for field in fields], f"{where}, {kind.__name__}", needed)
    kinds = {name: KINDS[text.partition("[")[0]] for name, text in kind.__annotations__.items()}
    values = {key: section(entry, key, where, kinds[key]) for key in entry}
    return kind(**{key: tuple(value) if kinds[key] is list else value for key, value in values.items()})


def _check_experiments(experiments: Mapping[str, Experiment]) -> None:
    folders: dict[str, Training] = {}
    for experiment in experiments.values():
        for training in experiment.trainings:
            other = folders.setdefault(training.folder, training)
            if dataclasses.replace(training, point=other.point, seeds=other.seeds) != other:
                raise ManifestError(f"{experiment.id}: {training.folder} holds another training too: give it a tag")
        for command in experiment.commands.values():
            for need in command.needs:
                find(experiments, need, experiment.id)


def find(experiments: Mapping[str, Experiment], need: Need, reader: str = "") -> Training | Command:
    """Return the training or command that is needed; a `ManifestError` if there is none, or several trainings fit."""
    experiment = select(experiments, need.experiment)
    if need.command:
        if need.command not in experiment.commands:
            near = suggest(need.command, experiment.commands)
            raise ManifestError(f"{reader} needs command {need.command} of {need.experiment}.{near}")
        return experiment.commands[need.command]
    fitting = [row for row in experiment.trainings if dict(row.point) | need.point == dict(row.point)]
    if len(fitting) != 1:
        point = ", ".join(f"{axis} {value}" for axis, value in need.point.items()) or "a training"
        raise ManifestError(
            f"{reader} needs {point} of {need.experiment}: {len(fitting)} trainings fit, expected one: name each axis"
        )
    return fitting[0]


class _Name(str):
    """A value of an axis; ``{model.file}`` in a template is its short name in files."""

    file: str


def expand_grid(grid: Mapping[str, Any], axes: Mapping[str, Any], where: str) -> Iterator[Training]:
    """Yield the trainings of a grid: ``over`` (axis -> values or ``all``), ``cfg``, ``set``, ``tag``, ``seeds``.

    ``{axis}`` in `cfg`, `tag` and string values of `set` is the value, ``{axis.file}`` its short name; ``skip`` lists
    points that are left out; ``splits: True`` takes the seed for the split, ``seeded`` lists further keys that take
    it. `axes` is axis -> value -> short name; `where` begins messages.

    Raises:
        ManifestError: an axis or value that is not known, or an entry that is missing.
    """
    check_keys(grid, GRID_KEYS, where, needed=("cfg", "seeds"))
    over = {axis: _list_values(axis, values, axes, where) for axis, values in section(grid, "over", where).items()}
    skipped = section(grid, "skip", where, list)
    for point in skipped:
        check_keys(point, over, f"{where}, skip")
        for axis, value in point.items():
            check_value(str(value), over[axis], f"{where}, skip: {axis}")
    seeds = range(grid["seeds"]) if isinstance(grid["seeds"], int) else section(grid, "seeds", where, list)
    for values in itertools.product(*over.values()):
        point = dict(zip(over, values, strict=True))
        if any(all(point[axis] == str(value) for axis, value in left_out.items()) for left_out in skipped):
            continue
        settings = {  # a filled template is read as YAML: "{k}" becomes a number
            key: yaml.safe_load(_fill(value, point, where)) if isinstance(value, str) and "{" in value else value
            for key, value in section(grid, "set", where).items()
        }
        yield Training(
            point={axis: str(value) for axis, value in point.items()},
            cfg=_fill(section(grid, "cfg", where, str), point, where),
            seeds=tuple(seeds),
            settings=settings,
            tag=_fill(section(grid, "tag", where, str), point, where),
            splits=grid.get("splits", False),
            seeded=tuple(section(grid, "seeded", where, list)),
        )


def _list_values(axis: str, values: Any, axes: Mapping[str, Any], where: str) -> list[_Name]:
    """Return the values of an axis; one without short names in `axes` takes any."""
    short = {str(name): str(file) for name, file in section(axes, axis, f"{where}, axes").items()}
    if values == "all" and not short:
        raise ManifestError(f"{where}: axis {axis!r} has no values for `all`.{suggest(axis, axes)}")
    if values != "all" and not isinstance(values, list):
        raise ManifestError(f"{where}: axis {axis}: expected a list of values or `all`, found {values!r}")
    names = []
    for value in short if values == "all" else values:
        if short:
            check_value(str(value), short, f"{where}: axis {axis}")
        name = _Name(value)
        name.file = short.get(name, name.lower())
        names.append(name)
    return names


def check_value(value: str, allowed: Any, where: str) -> None:
    """Refuse a value that is not allowed, with near misses; `where` begins the message."""
    if value not in allowed:
        raise ManifestError(f"{where} has no {value!r}.{suggest(value, allowed)}")


def _fill(template: str, point: Mapping[str, _Name], where: str) -> str:
    try:
        return template.format(**point)
    except KeyError as error:
        raise ManifestError(f"{where}: {template!r}: no axis {error}.{suggest(error.args[0], point)}") from error


def section(entry: Mapping[Any, Any], key: Any, where: str, kind: type = dict) -> Any:
    """Return the value of a key, which must be of this type (a mapping by default); empty if there is none."""
    content = entry.get(key)
    if content is None:
        return kind()
    if not isinstance(content, kind):
        raise ManifestError(f"{where}, {key}: expected {EXPECTED[kind]}, found {content!r}")
    return content


def check_keys(entry: Mapping[str, Any], allowed: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Check the keys of an entry: a `ManifestError` for an unknown one, with near misses, or a missing one."""
    if not isinstance(entry, Mapping):
        raise ManifestError(f"{where}: expected keys and values, found {entry!r}")
    allowed = set(allowed)
    for key in entry:
        if key not in allowed:
            raise ManifestError(f"{where}: unknown key {key!r}.{suggest(key, allowed)}")
    if missing := [key for key in needed if key not in entry]:
        raise ManifestError(f"{where}: {', '.join(missing)} missing")


@dataclass(frozen=True)
class PrintedCell:
    """One number as printed."""

    text: str  # such as "75.20 ± 0.34", "OOM" or "3-8"
    mean: float | None = None  # None where no number is printed
    std: float | None = None  # None where none is printed
    n: int | None = None  # number of runs; None where the paper does not say
    quoted: str = ""  # source that the paper quotes; empty: its own run


@dataclass(frozen=True)
class PrintedTable:
    """One table."""

    id: str  # <paper>/<table>, such as kmip-paper/table2
    title: str  # in our words
    hardware: str  # as stated, or empty
    columns: Mapping[str, Mapping[str, Any]]  # name -> metric, better (higher, lower or None), unit
    rows: Mapping[str, Mapping[str, PrintedCell]]  # row -> column -> cell; a dash of the paper is not there
    notes: tuple[str, ...] = ()  # what a reader of the numbers should know


def load_printed(*folders: Path) -> dict[str, PrintedTable]:
    """Return the tables of all YAML files in some folders, by id.

    A file is ``table -> {title, hardware, seeds, columns, rows, quoted, notes}``; ``seeds`` is a number, or a list of
    ``{rows, columns, n}`` of which the first that fits holds; ``quoted`` is ``[{rows, columns, source}]``; a cell is a
    number or a string, null is a dash. Numbers with trailing zeros are in quotes.
    """
    return {
        f"{file.stem}/{name}": _read_table(f"{file.stem}/{name}", entry)
        for folder in folders
        for file in sorted(folder.glob("*.yaml"))
        for name, entry in read_yaml(file, error_type=ManifestError, empty=True).items()
    }


def _read_table(key: str, entry: Mapping[str, Any]) -> PrintedTable:
    check_keys(entry, TABLE_KEYS, key, needed=("title", "columns", "rows"))
    seeds, quoted = entry.get("seeds"), entry.get("quoted", [])
    counts = seeds if isinstance(seeds, list) else [{"n": seeds}]
    rows: dict[str, dict[str, PrintedCell]] = {}
    for row, texts in entry["rows"].items():
        cells = rows[str(row)] = {}
        for column, text in ((column, text) for column, text in texts.items() if text is not None):
            n, source = _first_fit(counts, row, column, "n"), _first_fit(quoted, row, column, "source") or ""
            mean, thousands, std = match.groups() if (match := NUMBER.match(str(text))) else (None, "", None)
            number = None if mean is None else float(mean) * (1000 if thousands else 1)
            cells[column] = PrintedCell(str(text), number, float(std) if std else None, n, source)
    notes = tuple(entry.get("notes", ()))
    return PrintedTable(key, entry["title"], entry.get("hardware", ""), entry["columns"], rows, notes)


def _first_fit(rules: list[Mapping[str, Any]], row: str, column: str, value: str) -> Any:
    fitting = (rule for rule in rules if row in rule.get("rows", [row]) and column in rule.get("columns", [column]))
    return next((rule[value] for rule in fitting), None)
