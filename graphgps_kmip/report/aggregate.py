"""Aggregation over seeds: mean and spread over the runs of one experiment, in GraphGym's `agg/` layout."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.file_lock import held
from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.finished_runs import finished_runs, read_finished
from graphgps_kmip.results.run_folder import SPLITS, stats_file, writing
from graphgps_kmip.results.run_record import Line, metric_names, numbers


class Spread(NamedTuple):
    """Mean and sample standard deviation (divided by n - 1) over n runs; the deviation of a single run is NaN."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Summary:
    """What the finished runs of an experiment reached.

    Args:
        runs: names of the finished runs.
        missing: names of the runs left out: not finished, damaged, or of another experiment.
        best: split -> metric -> spread of its values at each run's best validation epoch.
    """

    runs: tuple[str, ...]
    missing: tuple[str, ...]
    best: dict[str, dict[str, Spread]]


def aggregate(
    out_dir: Path | str, metric_best: str = "auto", metric_agg: str = "argmax", experiment: str | None = None
) -> Summary:
    """Write `<out_dir>/agg/{train,val,test}/{stats,best}.json` from the finished runs in `out_dir`.

    Each line of `stats.json` is one epoch over the runs that have it; `best.json` is one line, each run at its own
    best validation epoch (its last epoch, where there is no validation split). A line holds the mean as `<key>`, the
    population standard deviation (divided by n) as `<key>_std`, which is GraphGym's definition, and `runs`, the number
    of runs in it. `best.json` has the sample standard deviation (divided by n - 1) too, as `<key>_sample_std`: it is
    what tables and the log show, and null for a single run.

    Args:
        out_dir: folder of the experiment; its runs are the sub-folders whose names are whole numbers.
        metric_best: the metric that selects each run's epoch; `auto`: the lowest validation loss.
        metric_agg: `argmax` or `argmin`.
        experiment: count only runs whose record.json has this `experiment`; None: all. Runs of other settings may be in
            the same folder, and must not be averaged with these.

    Raises:
        ResultsError: no run is finished, the statistics of one are damaged, or do not have the metric.
        RunFolderError: the summary cannot be written; an earlier one is as it was.
    """
    out_dir = Path(out_dir)
    records, missing = _counted_runs(out_dir, experiment)
    if not records:
        raise ResultsError(
            f"No finished run in {out_dir}; unfinished: {', '.join(missing) or 'none'}. Train one first."
        )
    if missing:
        logging.warning("%s: runs %s are unfinished or of other settings, and not counted", out_dir, ", ".join(missing))
    runs = [read_finished(folder, record) for folder, record in records.items()]
    epochs = [best_epoch(run, metric_best, metric_agg) for run in runs]
    best = {}
    with ExitStack() as stack:
        with writing(out_dir / ".agg.lock"):  # two runs of one experiment may end together
            stack.enter_context(held(out_dir / ".agg.lock"))
        for split in SPLITS:
            lines = [run.get(split, {}) for run in runs]
            at_best = [by_epoch[epoch] for by_epoch, epoch in zip(lines, epochs, strict=True) if epoch in by_epoch]
            if not at_best:
                continue
            values = _values(at_best)
            samples = {
                f"{key}_sample_std": _sample_deviation(of_key) if len(of_key) > 1 else None
                for key, of_key in values.items()
            }
            _write(out_dir / "agg" / split / "best.json", [_mean_line(at_best) | samples])
            stats = [
                _mean_line([run[epoch] for run in lines if epoch in run]) | {"epoch": epoch}
                for epoch in sorted({epoch for run in lines for epoch in run})
            ]
            _write(out_dir / "agg" / split / "stats.json", stats)
            scores = {name: values.get(name, []) for name in ("loss", *metric_names(at_best[0]))}
            best[split] = {
                name: Spread(float(np.mean(of_name)), _sample_deviation(of_name), len(of_name))
                for name, of_name in scores.items()
            }
            n = next(iter(best[split].values())).n
            parts = ", ".join(
                f"{name} {spread.mean:.4g}{f' ± {spread.std:.2g}' if spread.n > 1 else ''}"
                for name, spread in best[split].items()
            )
            meaning = " (mean ± sample standard deviation)" if n > 1 else ""
            logging.info("%s, %s at the best epoch, n = %d: %s%s", out_dir.name, split, n, parts, meaning)
    return Summary(tuple(folder.name for folder in records), missing, best)


def check_results(
    out_dir: Path | str,
    metric_best: str = "auto",
    metric_agg: str = "argmax",
    experiment: str | None = None,
    replaced: Sequence[str] = (),
) -> None:
    """Check, before hours of training, that `aggregate` with the same arguments will be able to read the runs on disk.

    Damaged runs, which will not count, are logged; runs in `replaced` are about to be trained anew.

    Raises:
        ResultsError: the statistics of a finished run are damaged, or do not have the metric.
        RunFolderError: the operating system does not let us read a file, or a file is in the place of the summary.
    """
    records, _ = _counted_runs(Path(out_dir), experiment)
    for folder in (Path(out_dir) / "agg", *(Path(out_dir) / "agg" / split for split in SPLITS)):
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(f"{folder} is a file, where the summary of all runs belongs: move it away")
    for folder, record in records.items():
        if folder.name not in replaced:
            best_epoch(read_finished(folder, record), metric_best, metric_agg)


def _counted_runs(out_dir: Path, experiment: str | None) -> tuple[dict[Path, dict[str, Any]], tuple[str, ...]]:
    """Return the records of the finished runs, and the names of the others; notices about damaged ones are logged.

    A run without any statistics, such as of GraphGym's own modes, does not count.
    """
    runs = finished_runs(out_dir, experiment)
    for notice in runs.notices:
        logging.warning("%s", notice)
    records = {folder: record for folder, record in runs.records.items() if stats_file(folder, "train").exists()}
    missing = sorted((folder.name for folder in {**runs.left_out, **runs.records} if folder not in records), key=int)
    return records, tuple(missing)


def _values(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Return key -> its numbers, of the lines that have it."""
    keys = dict.fromkeys(key for line in lines for key in numbers(line))
    return {key: [float(line[key]) for line in lines if key in line] for key in keys}


def _sample_deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def _mean_line(lines: Sequence[Line]) -> Line:
    mean = {}
    for key, values in _values(lines).items():
        mean[key], mean[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    return mean | {"runs": len(lines)}


def _write(path: Path, lines: Sequence[Line]) -> None:
    with writing(path, "The runs themselves are complete."):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
