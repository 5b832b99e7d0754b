"""Chosen settings: what finished searches chose becomes the rows of a table, from results or as published.

What our searches chose is published (see `published_results`), so that their tables can be trained without searching
again. A search of the user's own comes first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphgps_kmip.common.project import reproduce_command
from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.experiment_spec import Experiment
from graphgps_kmip.experiments.manifest import check_keys
from graphgps_kmip.experiments.published_results import Published
from graphgps_kmip.experiments.run_status import HashOf
from graphgps_kmip.experiments.search_record import SearchRecord, read_search, search_file
from graphgps_kmip.experiments.search_space import Ranges, Search, Space, searches

NAMED = 15  # trainings that a message lists


def with_choices(
    experiment: Experiment,
    ranges: Ranges,
    out: Path,
    hash_of: HashOf,
    sample: bool = False,
    published: Published | None = None,
) -> Experiment:
    """Return an experiment whose models are tuned alike with the settings that its finished searches chose.

    Trainings without a finished search of today's ranges and settings are left as they are, and are not in
    `Experiment.searched`. Other experiments are returned as they are, also where they can be searched.

    Args:
        experiment (Experiment): As written.
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results, with the searches made here.
        hash_of (callable): Config hash of a command line.
        sample (bool, optional): On sample data, for which no published choice counts. (default: ``False``)
        published (Published, optional): See `load_published`; choices for trainings without a search in `out`, and
            runs of those whose choice is the published one, which `Experiment.published` then has. (default: None)

    Raises:
        ResultsError: the record of a search is damaged.
        ManifestError: a published choice is not in its ranges.
    """
    if "tuning" not in ranges.get(experiment.id, {}):
        return experiment
    entries = (published or {}).get(experiment.id, {})
    trainings, found, runs = {one.folder: one for one in experiment.trainings}, {}, {}
    for search in searches(experiment, ranges):
        folder = search.training.folder
        own = read_search(search_file(experiment.id, search.training, out, sample))
        for record in (own, _published(entries[folder], search) if folder in entries else None):
            if record and _is_of_today(record, search, out, hash_of, sample):
                chosen = search.finals(record.choice)[0]
                trainings[folder], found[chosen.folder] = chosen, record
                if not sample and record.choice == entries.get(folder, {}).get("choice") and "runs" in entries[folder]:
                    runs[chosen.folder] = entries[folder]["runs"]
                break
    return dataclasses.replace(experiment, trainings=tuple(trainings.values()), searched=found, published=runs)


def _is_of_today(record: SearchRecord, search: Search, out: Path, hash_of: HashOf, sample: bool) -> bool:
    if (record.ranges, record.fixed) != (search.space.ranges, search.space.fixed):
        return False
    return record.config_hash == hash_of(search.trial(record.choice).words(search.seed, out, sample))


def digest(ranges: Mapping[str, Any], fixed: Mapping[str, Any]) -> str:
    """Return a short hash of what a search chose from."""
    return hashlib.sha256(json.dumps([ranges, fixed]).encode()).hexdigest()[:12]


def _published(entry: Mapping[str, Any], search: Search) -> SearchRecord | None:
    """Return the record of a published choice, None if its ranges were others."""
    space, choice, of = search.space, entry["choice"], entry["of"]
    if of["ranges"] != digest(space.ranges, space.fixed):
        return None
    _check_choice(choice, space, search.training.folder)
    return SearchRecord(
        config=search.training.folder,
        config_hash=of["config_hash"],
        choice=choice,
        ranges=space.ranges,
        fixed=space.fixed,
        settings=space.settings(choice),
        tried=(),
        **entry["found"],
    )


def _check_choice(choice: Mapping[str, str], space: Space, where: str) -> None:
    names = [factor.name for factor in space.factors]
    check_keys(choice, names, f"choice of {where}", needed=names)
    for factor in space.factors:
        if choice[factor.name] not in factor.values:
            raise ManifestError(
                f"choice of {where}: {factor.name} {choice[factor.name]!r} is not in its range "
                f"{', '.join(factor.values)}"
            )


def check_searched(experiment: Experiment, options: Sequence[str] = ()) -> None:
    """Refuse to train what no search has chosen settings for.

    Args:
        experiment (Experiment): what is to be trained.
        options (sequence of str, optional): what else the command of that search needs. (default: ``()``)

    Raises:
        ManifestError: names the trainings, and the command that searches.
    """
    if experiment.searched is None:
        return
    missing = [one for one in experiment.trainings if one.folder not in experiment.searched]
    if missing:
        names = ", ".join(" ".join(one.point.values()) for one in missing[:NAMED])
        names += f" and {len(missing) - NAMED} others" if len(missing) > NAMED else ""
        raise ManifestError(
            f"{experiment.id}: no finished search has chosen the settings of {names}: run "
            f"`{reproduce_command()} {shlex.join(['run', experiment.id, '--search', *options])}`"
        )
