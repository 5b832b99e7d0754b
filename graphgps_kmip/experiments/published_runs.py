"""Published runs: a CSV file for each experiment in ``run/experiments/published/``, a row for each run.

``report.publishing`` writes them; a row is read as the run status of a finished run that was made elsewhere.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.run_status import TIMED, HashOf, State, Status, run_status

NUMBERS = ("validation", "score", "epochs", "seconds", "epoch_seconds", "memory_mb", "params", "width")
COLUMNS = (
    *("folder", "kind", "choice", "config_hash", "seed", "split", "metric", "better"),  # better: higher or lower
    *(*NUMBERS, "machine", "cores", "code_version", "date"),
)
RUN, TRIAL, TIMING = "run", "trial", "timing"  # of rows; timing: a run that had the machine to itself


class Key(NamedTuple):
    """What a published run is found by, next to its config hash."""

    folder: str  # of the training
    seed: int
    timed: bool = False


def row_key(row: Mapping[str, Any]) -> Key:
    """Return what the run of a row is found by."""
    return Key(row["folder"], int(row["seed"]), row["kind"] == TIMING)


def published_file(experiment: str, folder: Path) -> Path:
    """Return the file of an experiment in a folder of published runs."""
    return folder / f"{experiment.replace('/', '-')}.csv"


def with_published(experiment: Experiment, *folders: Path) -> Experiment:
    """Return an experiment with the runs that the files in some folders publish, of whatever settings."""
    published: dict[Key, Status] = {}
    for file in (published_file(experiment.id, folder) for folder in folders):
        if file.exists():
            with open(file, newline="", encoding="utf-8") as stream:
                for row in csv.DictReader(stream):
                    published[row_key(row)] = _read_status(row, file)
    return dataclasses.replace(experiment, published=published)


def run_or_published(
    published: Mapping[Key, Status],
    training: Training,
    seed: int,
    out: Path,
    hash_of: HashOf,
    timed: bool = False,
    sample: bool = False,
) -> Status:
    """Return the status of one seed's run below `out`; where it is not finished, of a published one of its settings.

    Args:
        published (Mapping): Of an experiment, of whatever settings.
        training (Training): Whose run it is.
        seed (int): Of the run.
        out (Path): Root of the results.
        hash_of (callable): Config hash of a command line.
        timed (bool, optional): Of ``run --timing``. (default: ``False``)
        sample (bool, optional): On sample data, of which nothing is published. (default: ``False``)
    """
    out = out / TIMED if timed else out
    here, elsewhere = run_status(training, seed, out, hash_of, sample), None
    if here.state is not State.DONE and not sample:
        elsewhere = published.get(Key(training.folder, seed, timed))
    same = elsewhere and elsewhere.record["config_hash"] == hash_of(training.arguments(seed, out))
    return elsewhere if same else here


def _read_status(row: Mapping[str, str], file: Path) -> Status:
    """Return the status whose record has what a row says, where the record of a run has it."""
    number: dict[str, Any] = {name: float(row[name]) if row[name] else None for name in NUMBERS}
    cores = int(float(row["cores"])) if row["cores"] else None  # a GPU has none
    record = {"published": True, "sample": False, "metric_best": row["metric"], "finished_at": row["date"]}
    record |= {name: row[name] for name in ("config_hash", "better", "code_version")}
    record |= {name: number[name] for name in ("epochs", "epoch_seconds", "params", "width")}
    record |= {"wall_time": number["seconds"], "hardware": {"cpu": row["machine"], "cores": cores}}
    record["hardware"] = record["hardware"] if cores else {"gpu": row["machine"]}
    record["peak_memory"] = {"ram": number["memory_mb"] and number["memory_mb"] * 2**20}
    test = {} if number["score"] is None else {row["metric"]: number["score"]}
    record["best"] = {"value": number["validation"], "test": test}
    failed = row["kind"] == TRIAL and not row["validation"]
    return Status(State.FAILED if failed else State.DONE, file, record, "where it was published" if failed else "")
