"""Aggregation over seeds: mean and spread over the runs of one experiment, in GraphGym's `agg/` layout."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from graphgps_kmip.common.file_lock import held
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.best_epoch import best_epoch
from graphgps_kmip.results.run_folder import SPLITS, stats_file, writing
from graphgps_kmip.results.run_record import Line, finished_runs, metric_names, numbers, read_finished, write_lines


def aggregate(
    out_dir: Path | str,
    metric_best: str = "auto",
    metric_agg: str = "argmax",
    experiment: str | None = None,
    unit: str = "",
) -> None:
    """Write `<out_dir>/agg/{train,val,test}/{stats,best}.json` from the finished runs in `out_dir`, and log the best.

    A line of `stats.json` is an epoch over the runs that have it; `best.json` is one line, each run at its best
    validation epoch (else its last one). A line holds the mean as `<key>`, the population standard deviation as
    `<key>_std` (GraphGym's definition) and the number of `runs`; `best.json` also the sample standard deviation
    (n - 1) as `<key>_sample_std`, which tables and the log show; null for a single run.

    Args:
        out_dir: folder of the experiment; its runs are the sub-folders whose names are whole numbers.
        metric_best: the metric that selects each run's epoch; `auto`: the lowest validation loss.
        metric_agg: `argmax` or `argmin`.
        experiment: count only runs whose record.json has this `experiment`; None: all.
        unit: what a run is, "fold" or "split": also log a table of all runs; "": none.

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
    with ExitStack() as stack:
        with writing(out_dir / ".agg.lock"):  # two runs of one experiment may end together
            stack.enter_context(held(out_dir / ".agg.lock"))
        for split in SPLITS:
            lines = [run.get(split, {}) for run in runs]
            at_best = [by_epoch[epoch] for by_epoch, epoch in zip(lines, epochs, strict=True) if epoch in by_epoch]
            if at_best:
                stats = [
                    _mean_line([run[epoch] for run in lines if epoch in run]) | {"epoch": epoch}
                    for epoch in sorted({epoch for run in lines for epoch in run})
                ]
                best = _mean_line(at_best) | {
                    f"{key}_sample_std": float(np.std(values, ddof=1)) if len(values) > 1 else None
                    for key, values in _values(at_best).items()
                }
                for name, content in (("best", [best]), ("stats", stats)):
                    file = out_dir / "agg" / split / f"{name}.json"
                    write_lines(file, content, "The runs themselves are complete.")
                _log_best(f"{out_dir.name}, {split}", best, ["loss", *metric_names(at_best[0])])
    if unit:
        metric = "loss" if metric_best == "auto" else metric_best
        best_lines = [
            {split: run.get(split, {}).get(epoch, {}) for split in SPLITS[1:]}
            for run, epoch in zip(runs, epochs, strict=True)
        ]
        logging.info("%s\n%s", out_dir.name, _table_text(unit, metric, [folder.name for folder in records], best_lines))


def _table_text(unit: str, metric: str, names: list[str], best_lines: list[dict[str, Line]]) -> str:
    """Return a table of the runs at their best epochs: validation, test, and the mean with the sample deviation."""
    values = [[line[split].get(metric, float("nan")) for split in SPLITS[1:]] for line in best_lines]
    rows = [[name, *(f"{value:.4g}" for value in row)] for name, row in zip(names, values, strict=True)]
    if len(values) > 1:
        means, stds = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
        rows.append(["mean", *(f"{mean:.4g} ± {std:.2g}" for mean, std in zip(means, stds, strict=True))])
    header = [unit, *(f"{split} {metric}" for split in SPLITS[1:])]
    return "\n".join(f"{first:<8}{second:<22}{third}" for first, second, third in (header, *rows))


def _log_best(where: str, best: Line, names: list[str]) -> None:
    parts = []
    for name in (name for name in names if name in best):
        std = best[f"{name}_sample_std"]
        parts.append(f"{name} {best[name]:.4g}{'' if std is None else f' ± {std:.2g}'}")
    meaning = " (mean ± sample standard deviation)" if best["runs"] > 1 else ""
    logging.info("%s at the best epoch, n = %d: %s%s", where, best["runs"], ", ".join(parts), meaning)


def _counted_runs(out_dir: Path, experiment: str | None) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """Return the records of finished runs with statistics, and the names of the other runs."""
    finished, others = finished_runs(out_dir, experiment)
    records = {folder: record for folder, record in finished.items() if stats_file(folder, "train").exists()}
    others += [folder for folder in finished if folder not in records]
    return records, sorted((folder.name for folder in others), key=int)


def _values(lines: Sequence[Line]) -> dict[str, list[float]]:
    """Return key -> its numbers, of the lines that have it."""
    keys = dict.fromkeys(key for line in lines for key in numbers(line))
    return {key: [float(line[key]) for line in lines if key in line] for key in keys}


def _mean_line(lines: Sequence[Line]) -> Line:
    mean = {}
    for key, values in _values(lines).items():
        mean[key], mean[f"{key}_std"] = float(np.mean(values)), float(np.std(values))
    return mean | {"runs": len(lines)}
