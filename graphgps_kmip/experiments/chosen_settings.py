"""Chosen settings: what searches chose becomes the rows of a table of equally tuned models."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from graphgps_kmip.common.environment import reproduce_command
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import SearchRecord, StatusOf, list_trials, make_record
from graphgps_kmip.experiments.published_runs import run_or_published
from graphgps_kmip.experiments.run_status import HashOf
from graphgps_kmip.experiments.search_space import Ranges, Search, searches

NAMED = 15  # trainings that a message lists


def with_choices(
    experiment: Experiment, ranges: Ranges, out: Path, hash_of: HashOf, sample: bool = False
) -> Experiment:
    """Return an experiment whose models are tuned alike with the settings that its finished searches chose.

    A search of one's own comes first, then one whose trials are published, in part or all. Trainings without either are
    unchanged, and not in `Experiment.searched`.

    Args:
        experiment (Experiment): As written, with its published runs (`with_published`).
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results, with the trials run here.
        hash_of (callable): Config hash of a command line.
        sample (bool, optional): On sample data, of which nothing is published. (default: ``False``)
    """
    if "tuning" not in ranges.get(experiment.id, {}):
        return experiment
    trainings, searched = {training.folder: training for training in experiment.trainings}, {}
    for search in searches(experiment, ranges):
        for published in ({}, experiment.published):
            status_of = partial(run_or_published, published, out=out, hash_of=hash_of, sample=sample)
            if record := _read_search(search, status_of, sample):
                final = search.finals(record.choice)[0]
                trainings[search.training.folder], searched[final.folder] = final, record
                break
    return dataclasses.replace(experiment, trainings=tuple(trainings.values()), searched=searched)


def _read_search(search: Search, status_of: StatusOf, sample: bool) -> SearchRecord | None:
    """Return the record of a search with as many trials as its ranges say; samples may have fewer."""
    most = search.tuning.trials
    records = (
        make_record(search, list_trials(search, status_of, n)) for n in range(most, 0 if sample else most - 1, -1)
    )
    return next(filter(None, records), None)


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
