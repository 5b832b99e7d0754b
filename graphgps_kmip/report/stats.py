"""Reading the JSON lines of a run, and choosing its best epoch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from graphgps_kmip.errors import ResultsError
from graphgps_kmip.names import suggest

SPLITS = ("train", "val", "test")
Line = dict[str, Any]
# Keys of a line that are neither the loss nor a metric.
BOOKKEEPING = ("epoch", "time_epoch", "time_iter", "eta", "eta_hours", "lr", "params")


def read_stats(run_dir: Path, split: str) -> dict[int, Line]:
    """Return the lines of `<run_dir>/<split>/stats.json` by epoch, in rising order; empty if there are none.

    A broken last line (of a killed run) is left out; of two lines for one epoch (of a resumed run) the later holds.

    Raises:
        ValueError: a line before the last is not JSON with an epoch.
    """
    path = Path(run_dir) / split / "stats.json"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    stats = {}
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            stats[int(entry["epoch"])] = entry
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise ResultsError(f"{path}, line {number} is not a JSON line with an epoch; move the run away.") from error
    return dict(sorted(stats.items()))


def read_run(run_dir: Path) -> dict[str, dict[int, Line]]:
    """Return the lines of every split that has some: split -> epoch -> line."""
    return {split: lines for split in SPLITS if (lines := read_stats(run_dir, split))}


def numbers(line: Line) -> list[str]:
    """Return the keys of a line whose values are numbers."""
    return [key for key, value in line.items() if isinstance(value, int | float)]


def metric_names(line: Line) -> list[str]:
    """Return the metrics that a line holds, in its order, without the loss."""
    return [key for key in numbers(line) if key not in (*BOOKKEEPING, "loss")]


def best_epoch(run: dict[str, dict[int, Line]], metric_best: str = "auto", metric_agg: str = "argmax") -> int:
    """Return the epoch of the first extremum on the validation split; the last epoch if there is no such split.

    Args:
        run: what `read_run` returns, at least one line.
        metric_best: a metric, or `auto`: the lowest loss. NaN loses against any number.
        metric_agg: `argmax` or `argmin`; not used for the loss.

    Raises:
        ValueError: the lines have no such metric.
    """
    if "val" not in run:
        return max(epoch for lines in run.values() for epoch in lines)
    name, sign = ("loss", 1) if metric_best in ("auto", "loss") else (metric_best, -1 if metric_agg == "argmax" else 1)
    for line in run["val"].values():
        if name not in line:
            raise ResultsError(
                f"metric_best: the results have no {name!r}.{suggest(name, ['loss', *metric_names(line)])}"
            )
    order = {epoch: sign * line[name] for epoch, line in run["val"].items()}
    return min(order, key=lambda epoch: (math.isnan(order[epoch]), order[epoch], epoch))
