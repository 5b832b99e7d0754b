"""Publishing runs: the rows of the CSV file that `experiments.run_status` reads, from results on disk."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ManifestError, ResultsError
from graphgps_kmip.experiments.experiment_spec import Experiment, Training
from graphgps_kmip.experiments.hyperparameter_search import ENDED, is_maximized, list_trials, with_choices
from graphgps_kmip.experiments.run_status import (
    COLUMNS,
    RUN,
    TIMING,
    TRIAL,
    ComputeHash,
    State,
    Status,
    read_failure,
    run_or_published,
)
from graphgps_kmip.experiments.search_space import Choice, Ranges, searches
from graphgps_kmip.report.result_table import run_value

Row = Mapping[str, Any]


def published_rows(experiment: Experiment, ranges: Ranges, out: Path, compute_hash: ComputeHash) -> list[Row]:
    """Return a row for each finished run of today's settings, here or else as published before, in a fixed order.

    Of models that are tuned alike also each trial that ended, failed ones too.

    Args:
        experiment (Experiment): As written, with its published runs (`with_published`).
        ranges (Ranges): See `load_ranges`.
        out (Path): Root of the results.
        compute_hash (callable): Config hash of a command line.

    Raises:
        ManifestError: there is no such run.
    """
    chosen_rows, rows = with_choices(experiment, ranges, out, compute_hash), []
    read_status = partial(run_or_published, experiment.published, out=out, compute_hash=compute_hash)
    for kind in (RUN, TIMING):
        for training in chosen_rows.trainings:
            search = (chosen_rows.searched or {}).get(training.folder)
            for seed in training.seeds[: 1 if kind == TIMING else None]:
                status = read_status(training, seed, timed=kind == TIMING)
                if status.state is State.DONE:
                    rows.append(_make_row(kind, search.choice if search else {}, training, seed, status))
    for search in searches(experiment, ranges) if chosen_rows.searched is not None else ():
        for trial in list_trials(search, read_status, search.tuning.trials):
            for (training, seed), status in zip(trial.runs, trial.statuses, strict=True):
                if status.state in ENDED:
                    rows.append(_make_row(TRIAL, trial.choice, training, seed, status))
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


def _make_row(kind: str, choice: Choice, training: Training, seed: int, status: Status) -> Row:
    """Return the row of a run; the test score of a trial is left out, for nothing is to be chosen by it."""
    record, arguments, done = status.record, training.arguments(seed, Path()), status.state is State.DONE
    if not (done or "published" in record):
        failure = read_failure(status.path)
        record = {
            "config_hash": failure["config_hash"],
            "wall_time": failure["seconds"],
            "finished_at": failure["date"],
        }
    metric, best, hardware = (record.get(name, {}) for name in ("metric_best", "best", "hardware"))
    numbers = {
        "validation": best.get("value"),
        "score": None if kind == TRIAL else best.get("test", {}).get(metric),
        "epochs": record.get("epochs"),
        "seconds": record.get("wall_time"),
        **{
            name: _read_value(name, status) if done else None
            for name in ("epoch_seconds", "memory_mb", "params", "width")
        },
    }
    return {
        "folder": training.folder,
        "kind": kind,
        "choice": " ".join(f"{name}={value}" for name, value in choice.items()),
        "config_hash": record["config_hash"],
        "seed": seed,
        "split": dict(zip(arguments[2::2], arguments[3::2], strict=True)).get("dataset.split_index", ""),
        "metric": metric or "",
        "better": ("higher" if is_maximized(status) else "lower") if done else "",
        **{name: _format_number(value) for name, value in numbers.items()},
        "machine": hardware.get("gpu") or hardware.get("cpu", ""),
        "cores": "" if hardware.get("gpu") else hardware.get("cores", ""),
        "code_version": record.get("code_version", ""),
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
