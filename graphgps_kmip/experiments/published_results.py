"""Published results of equally tuned models, in YAML: what our searches chose, and the values of its runs.

``run/experiments/published/`` holds a file for each table, which ``run/reproduce.py publish ID`` writes. A choice makes
a row that can be trained without a search of one's own; runs fill, where a table is asked for them, rows that were not
trained here. A search or a run of the user's own comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from graphgps_kmip.common.json_files import is_count, is_number
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Training
from graphgps_kmip.experiments.manifest import check_keys, section
from graphgps_kmip.experiments.run_status import HashOf, State, Status

COST = ("trials", "failed", "seconds", "seed", "metric", "value")  # of a choice, as in the record of its search
OF = ("ranges", "config_hash")  # what it was chosen from and among: of others, it does not count
NUMBERS = ("trials", "failed", "seconds", "seed", "value", "cores")  # single values; all others are texts
TEXTS = ("config_hash", "metric", "code_version", "finished_at")  # of runs


@dataclass(frozen=True)
class PublishedRuns:
    """Values of finished runs of one training that were made elsewhere.

    Args:
        config_hash (str): Of the first run: of other settings than today's, they do not count.
        metric (str): That chose the epochs.
        code_version (str): Of the last run.
        hardware (Mapping): As in a record.json, the name of the GPU or CPU and the number of cores.
        finished_at (str): Date of the last run.
        seeds (tuple): Of the runs.
        alone (tuple): Kinds of values that are those of one run that had the machine to itself.
        values (Mapping): Kind -> a value for each seed, in the unit of the run; of `alone` a single one.
        file (Path): That holds them.
    """

    config_hash: str
    metric: str
    code_version: str
    hardware: Mapping[str, Any]
    finished_at: str
    seeds: tuple[int, ...]
    alone: tuple[str, ...]
    values: Mapping[str, tuple[float, ...]]
    file: Path

    def are_of(self, training: Training, out: Path, hash_of: HashOf) -> bool:
        """Return whether they are runs of a training with today's settings, whose own would go below `out`."""
        return self.config_hash == hash_of(training.words(self.seeds[0], out))

    @property
    def statuses(self) -> dict[int, Status]:
        """Return seed -> status, with what a run's record says of its provenance."""
        record = {"metric_best": self.metric, "sample": False}
        record |= {name: getattr(self, name) for name in ("config_hash", "code_version", "hardware", "finished_at")}
        return {seed: Status(State.DONE, self.file, record) for seed in self.seeds}


Published = Mapping[str, Mapping[str, Mapping[str, Any]]]  # experiment -> training -> choice, found, of, runs
FACTS = tuple(one.name for one in fields(PublishedRuns) if one.name != "file")


def load_published(*folders: Path) -> Published:
    """Return what all YAML files of some folders publish, by the id of the experiment and the folder of the training.

    An entry is ``{choice, found, of, runs}``: the value of each factor, what the search cost and reached, hashes of
    its ranges and of the chosen trial, and, where there are any, the arguments of `PublishedRuns`.

    Raises:
        ManifestError: a file is no YAML, has an unknown key or lacks one, or numbers do not fit to the seeds.
    """
    published: dict[str, Mapping[str, Any]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        for key, entries in read_yaml(file, error_type=ManifestError, empty=True).items():
            if key in published:
                raise ManifestError(f"{file.name}, {key}: its results are in another file already: keep one of them")
            if not isinstance(entries, dict):
                raise ManifestError(f"{file.name}, {key}: expected trainings, found {entries!r}")
            published[key] = {name: _entry(one, f"{file.name}, {name}", file) for name, one in entries.items()}
    return published


def _entry(entry: Any, where: str, file: Path) -> dict[str, Any]:
    check_keys(entry, ("choice", "found", "of", "runs"), where, needed=("choice", "found", "of"))
    check_keys(section(entry, "found", where), COST, f"{where}, found", needed=COST)
    check_keys(section(entry, "of", where), OF, f"{where}, of", needed=OF)
    for part in ("choice", "found", "of"):
        _check_values(section(entry, part, where), f"{where}, {part}")
    return entry | ({"runs": _runs(entry["runs"], f"{where}, runs", file)} if "runs" in entry else {})


def _check_values(values: Mapping[str, Any], where: str) -> None:
    for name, value in values.items():
        kind, fits = ("number", is_number(value)) if name in NUMBERS else ("text", isinstance(value, str))
        if not fits:
            raise ManifestError(f"{where}: {name} is {value!r}: write a {kind}")


def _runs(entry: Any, where: str, file: Path) -> PublishedRuns:
    check_keys(entry, FACTS, where, needed=FACTS)
    for name, kind in (("hardware", dict), ("values", dict), ("seeds", list), ("alone", list)):
        if not isinstance(entry[name], kind):
            raise ManifestError(f"{where}: {name} is {entry[name]!r}: write a {'mapping' if kind is dict else 'list'}")
    _check_values(entry["hardware"] | {name: entry[name] for name in TEXTS}, where)
    seeds, alone = entry["seeds"], entry["alone"]
    if not seeds or not all(map(is_count, seeds)) or len(set(seeds)) < len(seeds):
        raise ManifestError(f"{where}: seeds are {seeds}: write each seed once")
    for kind, values in entry["values"].items():
        wanted = 1 if kind in alone else len(seeds)
        if not isinstance(values, list) or len(values) != wanted or not all(map(is_number, values)):
            raise ManifestError(f"{where}: {kind} is {values!r}: write {wanted} number{'s' * (wanted > 1)}, one a run")
    lists = {"seeds": tuple(seeds), "alone": tuple(alone)}
    values = {kind: tuple(one) for kind, one in entry["values"].items()}
    return PublishedRuns(**entry | lists | {"values": values, "file": file})
