"""Aggregation over seeds: mean and spread over the runs of one experiment, in GraphGym's `agg/` layout."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.file_lock import held
from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.finished_runs import FinishedRuns, finished_runs, read_finished
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
    found = _counted(out_dir, experiment)
    missing = tuple(folder.name for folder in found.left_out)
    if not found.records:
        raise ResultsError(
            f"No finished run in {out_dir}; unfinished: {', '.join(missing) or 'none'}. Train one first."
        )
    for notice in found.notices:
        logging.warning("%s", notice)
    if missing:
        logging.warning("%s: runs %s are unfinished or of other settings, and not counted", out_dir, ", ".join(missing))
    runs = [read_finished(folder, record) for folder, record in found.records.items()]
    chosen = [best_epoch(run, metric_best, metric_agg) for run in runs]
    best = {}
    with ExitStack() as stack:
        with writing(out_dir / ".agg.lock"):  # two runs of one experiment may end together
            stack.enter_context(held(out_dir / ".agg.lock"))
        for split in SPLITS:
            lines = [run.get(split, {}) for run in runs]
            at_best = [by_epoch[epoch] for by_epoch, epoch in zip(lines, chosen, strict=True) if epoch in by_epoch]
            if not at_best:
                continue
            best[split] = {name: _spread(at_best, name) for name in ("loss", *metric_names(at_best[0]))}
            _write(out_dir / "agg" / split / "best.json", [_mean_line(at_best) | _sample_deviations(at_best)])
            _write(out_dir / "agg" / split / "stats.json", _mean_lines(lines))
            _log(out_dir, split, best[split])
    return Summary(tuple(folder.name for folder in found.records), missing, best)


def check_results(
    out_dir: Path | str,
    metric_best: str = "auto",
    metric_agg: str = "argmax",
    experiment: str | None = None,
    replaced: Sequence[str] = (),
) -> None:
    """Check, before hours of training, that `aggregate` will be able to read the runs on disk.

    Damaged runs, which will not count, are logged.

    Args:
        out_dir: as of `aggregate`, as are the next three; it need not exist yet.
        metric_best: the metric that selects each run's epoch.
        metric_agg: `argmax` or `argmin`.
        experiment: only runs of it are averaged.
        replaced: names of runs that are about to be trained anew.

    Raises:
        ResultsError: the statistics of a finished run are damaged, or do not have the metric.
        RunFolderError: the operating system does not let us read a file, or a file is in the place of the summary.
    """
    found = _counted(Path(out_dir), experiment)
    for notice in found.notices:
        logging.warning("%s", notice)
    for folder in (Path(out_dir) / "agg", *(Path(out_dir) / "agg" / split for split in SPLITS)):
        if folder.exists() and not folder.is_dir():
            raise RunFolderError(f"{folder} is a file, where the summary of all runs belongs: move it away")
    for folder, record in found.records.items():
        if folder.name not in replaced:
            best_epoch(read_finished(folder, record), metric_best, metric_agg)


def _counted(out_dir: Path, experiment: str | None) -> FinishedRuns:
    """Return the finished runs; one without any statistics, such as of GraphGym's own modes, does not count."""
    found = finished_runs(out_dir, experiment)
    for folder in [folder for folder in found.records if not stats_file(folder, "train").exists()]:
        del found.records[folder]
        found.left_out[folder] = "it has no train/stats.json"
    return FinishedRuns(
        found.records, dict(sorted(found.left_out.items(), key=lambda pair: int(pair[0].name))), found.notices
    )


def _values(lines: Sequence[Line], key: str) -> list[float]:
    return [float(line[key]) for line in lines if key in line]


def _spread(lines: Sequence[Line], key: str) -> Spread:
    values = _values(lines, key)
    return Spread(float(np.mean(values)), _sample_deviation(values), len(values))


def _sample_deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def _keys(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(key for line in lines for key in numbers(line)))


def _mean_line(lines: Sequence[Line]) -> Line:
    mean = {}
    for key in _keys(lines):
        values = _values(lines, key)
        mean[key], mean[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    return mean | {"runs": len(lines)}


def _sample_deviations(lines: Sequence[Line]) -> Line:
    values = {key: _values(lines, key) for key in _keys(lines)}
    return {f"{key}_sample_std": _sample_deviation(of) if len(of) > 1 else None for key, of in values.items()}


def _mean_lines(runs: Sequence[dict[int, Line]]) -> list[Line]:
    epochs = sorted({epoch for run in runs for epoch in run})
    return [_mean_line([run[epoch] for run in runs if epoch in run]) | {"epoch": epoch} for epoch in epochs]


def _write(path: Path, lines: Sequence[Line]) -> None:
    with writing(path, "The runs themselves are complete."):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def _log(out_dir: Path, split: str, spreads: dict[str, Spread]) -> None:
    spread = {name: f" ± {one.std:.2g}" if one.n > 1 else "" for name, one in spreads.items()}
    parts = ", ".join(f"{name} {one.mean:.4g}{spread[name]}" for name, one in spreads.items())
    n = next(iter(spreads.values())).n
    meaning = " (mean ± sample standard deviation)" if n > 1 else ""
    logging.info("%s, %s at the best epoch, n = %d: %s%s", out_dir.name, split, n, parts, meaning)
