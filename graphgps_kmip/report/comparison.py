"""Several experiments side by side: what differs in their configs, and what came out, over seeds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import yaml

from graphgps_kmip.errors import ResultsError

# Where a run happened, not what it was.
NOT_COMPARED = ("out_dir", "run_dir", "seed", "custom_modules", "name_tag")


def finished_runs(out_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the records of the finished runs in a results folder, by the name of the run."""
    records = {}
    for path in sorted(out_dir.glob("*/record.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("finished") and path.parent.name.isdigit():
            records[path.parent.name] = record
    return records


def comparison(out_dirs: list[Path], num_runs: int) -> str:
    """Return a table of test scores (mean and sample standard deviation), parameters and seconds, baseline first.

    Above it stand the settings in which the experiments differ, so that an unfair comparison shows.

    Args:
        out_dirs: results folders, ``results/<config name>``.
        num_runs: runs each of them must have.

    Raises:
        ValueError: one has fewer finished runs, or runs on sample data, or they were scored by different metrics.
    """
    runs = {out_dir: finished_runs(out_dir) for out_dir in out_dirs}
    for out_dir, found in runs.items():
        if len(found) < num_runs:
            raise ResultsError(
                f"{out_dir} has {len(found)} finished runs, {num_runs} are wanted: train the missing ones"
            )
        if any(record.get("sample") for record in found.values()):
            raise ResultsError(f"{out_dir} holds runs on sample data (dataset.sample True), which no table shows")
        if len({record.get("experiment") for record in found.values()}) > 1:
            raise ResultsError(f"{out_dir} holds runs of different settings: give them folders of their own (name_tag)")
    metrics = {record["metric_best"] for found in runs.values() for record in found.values()}
    if len(metrics) > 1:
        raise ResultsError(f"these experiments chose their epochs by different metrics ({', '.join(sorted(metrics))})")
    metric = metrics.pop()
    rows = [["", f"test {metric}", "n", "parameters", "s / epoch"]]
    rows += [[out_dir.name, *_row(list(found.values()), metric)] for out_dir, found in runs.items()]
    return "\n".join(["They differ in:", *_differences(out_dirs), "", *_columns(rows)])


def _row(records: list[dict[str, Any]], metric: str) -> list[str]:
    scores = [record["best"]["test"][metric] for record in records]
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    seconds = statistics.median(record["seconds_per_epoch"] for record in records)
    return [f"{statistics.mean(scores):.4f}{spread}", str(len(scores)), f"{records[0]['params']:,}", f"{seconds:.2f}"]


def _differences(out_dirs: list[Path]) -> list[str]:
    settings = [_settings(out_dir) for out_dir in out_dirs]
    keys = sorted({key for one in settings for key in one})
    # A group that only one experiment has belongs to a component that the others do not use.
    shared = [key for key in keys if all(key in one for one in settings)]
    lines = [
        f"  {key}: {' | '.join(str(one[key]) for one in settings)}"
        for key in shared
        if len({str(one[key]) for one in settings}) > 1
    ]
    return lines or ["  nothing"]


def _settings(out_dir: Path) -> dict[str, Any]:
    file = next(iter(sorted(out_dir.glob("[0-9]*/config.yaml"))))
    flat: dict[str, Any] = {}
    stack = [("", yaml.safe_load(file.read_text(encoding="utf-8")))]
    while stack:
        prefix, tree = stack.pop()
        for key, value in tree.items():
            if isinstance(value, dict):
                stack.append((f"{prefix}{key}.", value))
            elif f"{prefix}{key}" not in NOT_COMPARED:
                flat[f"{prefix}{key}"] = value
    return flat


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
