"""Chosen settings: what searches chose becomes the rows of a table of equally tuned models."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from graphgps_kmip.common.environment import reproduce_command
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.hyperparameter_search import read_search, study_file
from graphgps_kmip.experiments.run_status import HashOf
from graphgps_kmip.experiments.search_space import Ranges, searches

NAMED = 15  # trainings that a message lists


def with_choices(
    experiment: Experiment, ranges: Ranges, out: Path, hash_of: HashOf, sample: bool = False
) -> Experiment:
    """Return an experiment whose models are tuned alike with the settings that its finished searches chose.

    Trainings without a finished search of today's ranges are unchanged, and not in `Experiment.searched`.

    Args:
        experiment (Experiment): As written.
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results, with the searches made here.
        hash_of (callable): Config hash of a command line.
        sample (bool, optional): On sample data. (default: ``False``)
    """
    if "tuning" not in ranges.get(experiment.id, {}):
        return experiment
    trainings, searched = {training.folder: training for training in experiment.trainings}, {}
    for search in searches(experiment, ranges):
        folder, space = search.training.folder, search.space
        record = read_search(study_file(experiment.id, search.training, out, sample))
        if record is None or (record.ranges, record.fixed) != (space.ranges, space.fixed):
            continue
        if record.config_hash == hash_of(search.trial(record.choice).arguments(search.seed, out, sample)):
            final = search.finals(record.choice)[0]
            trainings[folder], searched[final.folder] = final, record
    return dataclasses.replace(experiment, trainings=tuple(trainings.values()), searched=searched)


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
