"""Publishing runs: the rows of the CSV file that `experiments.published_runs` reads, from results on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ManifestError, ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.hyperparameter_search import is_maximized
from graphgps_kmip.experiments.published_runs import COLUMNS, RUN, TIMING, TRIAL, run_or_published
from graphgps_kmip.experiments.run_status import HashOf, State, Status
from graphgps_kmip.report.result_table import run_value

Row = Mapping[str, Any]


def published_rows(experiment: Experiment, out: Path, hash_of: HashOf) -> list[Row]:
    """Return a row for each finished run of today's settings, here or else as published before, in a fixed order.

    Args:
        experiment (Experiment): With what its searches chose and what is published of it (`with_choices`).
        out (Path): Root of the results.
        hash_of (callable): Config hash of a command line.

    Raises:
        ManifestError: there is no such run.
    """
    searched, rows = experiment.searched or {}, []
    for kind in (RUN, TIMING):
        for training in experiment.trainings:
            choice = searched[training.folder].choice if training.folder in searched else {}
            for seed in training.seeds[: 1 if kind == TIMING else None]:
                status = run_or_published(experiment.published, training, seed, out, hash_of, kind == TIMING)
                if status.state is State.DONE:
                    rows.append(_make_row(kind, choice, training, seed, status))
    if not rows:
        raise ManifestError(f"{experiment.id} has no finished run of today's settings in {out}: `run` it first")
    return rows


def published_csv(rows: Iterable[Row]) -> bytes:
    """Return the content of the file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _make_row(kind: str, choice: Mapping[str, str], training: Training, seed: int, status: Status) -> Row:
    """Return the row of a run; the test score of a trial is left out, for nothing is to be chosen by it."""
    record, arguments = status.record, training.arguments(seed, Path())
    best, hardware = record["best"], record["hardware"]
    values = {name: _read_value(name, status) for name in ("epoch_seconds", "memory_mb", "params", "width")}
    values |= {"validation": best.get("value"), "score": best.get("test", {}).get(record["metric_best"])}
    values |= {"epochs": record.get("epochs"), "seconds": record.get("wall_time")}
    values |= {"score": None} if kind == TRIAL else {}
    return {
        "folder": training.folder,
        "kind": kind,
        "choice": " ".join(f"{name}={value}" for name, value in choice.items()),
        "config_hash": record["config_hash"],
        "seed": seed,
        "split": dict(zip(arguments[2::2], arguments[3::2], strict=True)).get("dataset.split_index", ""),
        "metric": record["metric_best"],
        "better": "higher" if is_maximized(status) else "lower",
        **{name: _format_number(value) for name, value in values.items()},
        "machine": hardware.get("gpu") or hardware.get("cpu", ""),
        "cores": "" if hardware.get("gpu") else hardware.get("cores", ""),
        "code_version": record["code_version"],
        "date": record["finished_at"][:10],
    }


def _read_value(kind: str, status: Status) -> float | None:
    try:
        return run_value(kind, status)
    except ResultsError:  # not every run has epochs, as those of BREC
        return None


def _format_number(value: float | None) -> str:
    """Return six digits of a value, as scores have in stats.json; a whole number as it is."""
    if value is None:
        return ""
    return f"{int(value)}" if float(value).is_integer() else f"{value:.6g}"
