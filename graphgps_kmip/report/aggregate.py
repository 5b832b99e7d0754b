"""Mean and spread over the runs of one experiment, in GraphGym's `agg/` layout."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.stats import SPLITS, Line, best_epoch, metric_names, numbers, read_run


class Spread(NamedTuple):
    """Mean and population standard deviation over n runs."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True)
class Summary:
    """What the finished runs of an experiment reached.

    Args:
        runs: names of the finished runs.
        missing: names of the runs left out: not finished, or of another experiment.
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
    population standard deviation as `<key>_std`, and `runs`, the number of runs in it.

    Args:
        out_dir: folder of the experiment; its runs are the sub-folders whose names are whole numbers.
        metric_best: the metric that selects each run's epoch; `auto`: the lowest validation loss.
        metric_agg: `argmax` or `argmin`.
        experiment: count only runs whose record.json has this `experiment`; None: all. Runs of other settings may lie
            in the same folder, and must not be averaged with these.

    Raises:
        ValueError: no run is finished, or the results do not have the metric.
    """
    out_dir = Path(out_dir)
    folders = sorted((p for p in out_dir.glob("*") if p.is_dir() and p.name.isdecimal()), key=lambda p: int(p.name))
    finished = [folder for folder in folders if _is_finished(folder, experiment)]
    missing = tuple(folder.name for folder in folders if folder not in finished)
    if not finished:
        raise ResultsError(
            f"No finished run in {out_dir}; unfinished: {', '.join(missing) or 'none'}. Train one first."
        )
    if missing:
        logging.warning("%s: runs %s are unfinished or of other settings, and not counted", out_dir, ", ".join(missing))
    runs = [read_run(folder) for folder in finished]
    chosen = [best_epoch(run, metric_best, metric_agg) for run in runs]
    best = {}
    with FileLock(out_dir / ".agg.lock"):  # two runs of one experiment may end together
        for split in SPLITS:
            lines = [run.get(split, {}) for run in runs]
            at_best = [by_epoch[epoch] for by_epoch, epoch in zip(lines, chosen, strict=True) if epoch in by_epoch]
            if not at_best:
                continue
            best[split] = {name: _spread(at_best, name) for name in ("loss", *metric_names(at_best[0]))}
            _write(out_dir / "agg" / split / "best.json", [_mean_line(at_best)])
            _write(out_dir / "agg" / split / "stats.json", _mean_lines(lines))
            _log(out_dir, split, best[split])
    return Summary(tuple(folder.name for folder in finished), missing, best)


def _is_finished(folder: Path, experiment: str | None) -> bool:
    try:
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    if experiment is not None and record.get("experiment") != experiment:
        return False
    return record.get("finished") is True and (folder / "train" / "stats.json").exists()


def _spread(lines: Sequence[Line], key: str) -> Spread:
    values = np.array([line[key] for line in lines if key in line], dtype=np.float64)
    return Spread(float(values.mean()), float(values.std()), len(values))


def _mean_line(lines: Sequence[Line]) -> Line:
    mean = {}
    for key in dict.fromkeys(key for line in lines for key in numbers(line)):
        mean[key], mean[f"{key}_std"], _ = _spread(lines, key)
    return mean | {"runs": len(lines)}


def _mean_lines(runs: Sequence[dict[int, Line]]) -> list[Line]:
    epochs = sorted({epoch for run in runs for epoch in run})
    return [_mean_line([run[epoch] for run in runs if epoch in run]) | {"epoch": epoch} for epoch in epochs]


def _write(path: Path, lines: Sequence[Line]) -> None:
    """Write under a temporary name and rename, so that a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.replace(unfinished, path)


def _log(out_dir: Path, split: str, spreads: dict[str, Spread]) -> None:
    spread = {name: f" ± {one.std:.2g}" if one.n > 1 else "" for name, one in spreads.items()}
    parts = ", ".join(f"{name} {one.mean:.4g}{spread[name]}" for name, one in spreads.items())
    logging.info("%s, %s at the best epoch, n = %d: %s", out_dir.name, split, next(iter(spreads.values())).n, parts)
