"""Chosen settings: what searches chose becomes the rows of a table, from results on disk or as published.

``run/reproduce.py publish ID`` writes ``run/experiments/published/``; your own searches and runs override it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphgps_kmip.common.environment import reproduce_command
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord, read_search, study_file
from graphgps_kmip.experiments.run_status import HashOf, State, Status
from graphgps_kmip.experiments.search_space import Ranges, Search, searches

COST = ("trials", "failed", "seconds", "seed", "metric", "value")  # of a choice, as in the record of its search
NAMED = 15  # trainings that a message lists
Published = Mapping[str, Mapping[str, Mapping[str, Any]]]  # experiment -> training -> choice, found, of, runs


@dataclass(frozen=True)
class PublishedRuns:
    """Values of finished runs of one training that were made elsewhere."""

    config_hash: str  # of the first run: of other settings than today's, they do not count
    metric: str  # that chose the epochs
    code_version: str  # of the last run
    hardware: Mapping[str, Any]  # as in a record.json, the name of the GPU or CPU and the number of cores
    finished_at: str  # date of the last run
    seeds: tuple[int, ...]  # of the runs
    alone: tuple[str, ...]  # kinds of values that are those of one run that had the machine to itself
    values: Mapping[str, tuple[float, ...]]  # kind -> a value for each seed, in the unit of the run; of `alone` one
    file: Path  # that holds them

    def are_of(self, training: Training, out: Path, hash_of: HashOf) -> bool:
        """Return whether they are runs of a training with today's settings, whose own would go below `out`."""
        return self.config_hash == hash_of(training.arguments(self.seeds[0], out))

    @property
    def statuses(self) -> dict[int, Status]:
        """Return seed -> status, with what a run's record says of its provenance."""
        record = {"metric_best": self.metric, "sample": False}
        record |= {name: getattr(self, name) for name in ("config_hash", "code_version", "hardware", "finished_at")}
        return {seed: Status(State.DONE, self.file, record) for seed in self.seeds}


FACTS = tuple(field.name for field in dataclasses.fields(PublishedRuns) if field.name != "file")


def load_published(*folders: Path) -> Published:
    """Return what all YAML files of some folders publish, by the id of the experiment and the folder of the training.

    An entry is ``{choice, found, of, runs}``: the value of each factor, what the search cost and reached, hashes of
    its ranges and of the chosen trial, and, where there are any, the arguments of `PublishedRuns`.
    """
    published: dict[str, dict[str, Mapping[str, Any]]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.yaml"))):
        for key, entries in read_yaml(file, error_type=ManifestError, empty=True).items():
            published[key] = entries
            for entry in entries.values():
                if runs := entry.get("runs"):
                    lists = {part: tuple(runs[part]) for part in ("seeds", "alone")}
                    values = {kind: tuple(numbers) for kind, numbers in runs["values"].items()}
                    entry["runs"] = PublishedRuns(**runs | lists | {"values": values, "file": file})
    return published


def with_choices(
    experiment: Experiment,
    ranges: Ranges,
    out: Path,
    hash_of: HashOf,
    sample: bool = False,
    published: Published | None = None,
) -> Experiment:
    """Return an experiment whose models are tuned alike with the settings that its finished searches chose.

    Trainings without a finished search of today's ranges are unchanged, and not in `Experiment.searched`.

    Args:
        experiment (Experiment): As written.
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results, with the searches made here.
        hash_of (callable): Config hash of a command line.
        sample (bool, optional): On sample data, for which no published choice counts. (default: ``False``)
        published (Published, optional): Choices, with their runs, where `out` has no search. (default: ``None``)
    """
    if "tuning" not in ranges.get(experiment.id, {}):
        return experiment
    entries = (published or {}).get(experiment.id, {})
    trainings, searched, runs = {training.folder: training for training in experiment.trainings}, {}, {}
    for search in searches(experiment, ranges):
        folder, space = search.training.folder, search.space
        entry = entries.get(folder, {})
        here = read_search(study_file(experiment.id, search.training, out, sample))
        for record in (here, _read_published(entry, search) if entry else None):
            if record is None or (record.ranges, record.fixed) != (space.ranges, space.fixed):
                continue
            if record.config_hash == hash_of(search.trial(record.choice).arguments(search.seed, out, sample)):
                final = search.finals(record.choice)[0]
                trainings[folder], searched[final.folder] = final, record
                if not sample and record.choice == entry.get("choice") and "runs" in entry:
                    runs[final.folder] = entry["runs"]
                break
    return dataclasses.replace(experiment, trainings=tuple(trainings.values()), searched=searched, published=runs)


def digest(ranges: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Return a short hash of what a search chose from."""
    return hashlib.sha256(json.dumps([ranges, fixed]).encode()).hexdigest()[:12]


def _read_published(entry: Mapping[str, Any], search: Search) -> SearchRecord | None:
    space, choice = search.space, entry["choice"]
    if entry["of"]["ranges"] != digest(space.ranges, space.fixed):
        return None
    facts = {"choice": choice, "ranges": space.ranges, "fixed": space.fixed, "settings": space.settings(choice)}
    return SearchRecord(
        config=search.training.folder, config_hash=entry["of"]["config_hash"], **facts, **entry["found"]
    )


def check_searched(experiment: Experiment, options: Sequence[str] = ()) -> None:
    """Refuse to train what no search has chosen settings for, with the command that searches.

    Args:
        experiment (Experiment): What is to be trained.
        options (sequence of str, optional): What else that command needs. (default: ``()``)
    """
    missing = [row for row in experiment.trainings if row.folder not in (experiment.searched or {})]
    if missing and experiment.searched is not None:
        names = ", ".join(" ".join(training.point.values()) for training in missing[:NAMED])
        names += f" and {len(missing) - NAMED} others" if len(missing) > NAMED else ""
        raise ManifestError(
            f"{experiment.id}: no finished search has chosen the settings of {names}: run "
            f"`{reproduce_command()} {shlex.join(['run', experiment.id, '--search', *options])}`"
        )
