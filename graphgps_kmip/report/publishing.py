"""Publishing results of equally tuned models: writes the YAML file that `experiments.chosen_settings` reads."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ManifestError
from graphgps_kmip.experiments.chosen_settings import COST, FACTS, PublishedRuns, check_searched, digest
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.run_status import TIMED, HashOf, State, run_status
from graphgps_kmip.report.result_table import COSTS, VALUES, run_value


def published_yaml(experiment: Experiment, out: Path, hash_of: HashOf) -> Iterator[str]:
    """Yield the lines of the file: finished searches' choices, with the finished runs here or, if more, as published.

    Args:
        experiment (Experiment): With the settings that its searches chose.
        out (Path): Root of the results.
        hash_of (callable): Config hash of a command line.
    """
    if experiment.of or experiment.searched is None:
        raise ManifestError(f"{experiment.id} has no models of its own that are tuned alike by --search")
    if not experiment.searched:
        check_searched(experiment)
    kinds = {kind for spec in experiment.tables.values() for kind in spec.value.split() if kind in VALUES}
    yield f"# Made by `python run/reproduce.py run {experiment.id} --search`, written by `publish {experiment.id}`."
    yield f"{experiment.id}:"
    trainings = {training.folder: training for training in experiment.trainings}
    for folder, record in experiment.searched.items():
        facts = dataclasses.asdict(record)
        yield f"  {record.config}:"
        yield f"    choice: {_format_mapping(record.choice)}"
        yield f"    found: {_format_mapping({name: facts[name] for name in COST})}"
        hashes = {"ranges": digest(record.ranges, record.fixed), "config_hash": record.config_hash}
        yield f"    of: {_format_mapping(hashes)}"
        before, here = experiment.published.get(folder), _collect_runs(trainings[folder], sorted(kinds), out, hash_of)
        runs = max(filter(None, (here, before)), key=lambda runs: len(runs.seeds), default=None)
        if runs is not None:
            yield "    runs:"
            yield from (f"      {name}: {_format_value(getattr(runs, name))}" for name in FACTS if name != "values")
            yield "      values:"
            yield from (f"        {kind}: {_format_value(values)}" for kind, values in runs.values.items())


def _collect_runs(training: Training, kinds: list[str], out: Path, hash_of: HashOf) -> PublishedRuns | None:
    runs = {seed: run_status(training, seed, out, hash_of) for seed in training.seeds}
    done = {seed: run for seed, run in runs.items() if run.state is State.DONE}
    if not done:
        return None
    timed = run_status(training, training.seeds[0], out / TIMED, hash_of)
    alone = tuple(kind for kind in kinds if kind in COSTS and timed.state is State.DONE)
    last = max(done.values(), key=lambda run: run.record["finished_at"]).record
    hardware = last["hardware"]
    return PublishedRuns(
        config_hash=next(iter(done.values())).record["config_hash"],
        metric=last["metric_best"],
        code_version=last["code_version"],
        hardware={name: hardware[name] for name in ("gpu", "cpu", "cores") if hardware.get(name)},
        finished_at=last["finished_at"][:10],
        seeds=tuple(done),
        alone=alone,
        values={
            kind: tuple(_round_value(run_value(kind, run)) for run in ([timed] if kind in alone else done.values()))
            for kind in kinds
        },
        file=Path(),
    )


def _round_value(value: float) -> float | int:
    """Return six digits of a value, as scores have in stats.json; a whole number as it is."""
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _format_value(value: Any) -> str:
    """Return a value as YAML in a line; texts are quoted, for a value named 0.1 is one."""
    return _format_mapping(value) if isinstance(value, Mapping) else json.dumps(value)


def _format_mapping(entries: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key}: {json.dumps(value)}" for key, value in entries.items()) + "}"
