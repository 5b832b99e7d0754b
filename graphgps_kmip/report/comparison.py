"""Comparison of experiments: settings in which they differ, and test scores over seeds."""

from __future__ import annotations

import logging
import statistics
from pathlib import Path
from typing import Any

from graphgps_kmip.common.json_files import is_count, is_number
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.finished_runs import FinishedRuns, finished_runs, read_run_config

# Where a run happened, not what it was.
NOT_COMPARED = ("out_dir", "run_dir", "seed", "custom_modules", "name_tag")


def comparison(out_dirs: list[Path], num_runs: int) -> str:
    """Return a table of test scores (mean and sample standard deviation), parameters and seconds, baseline first.

    Above it are the settings in which the experiments differ, so that an unfair comparison shows.

    Args:
        out_dirs: results folders, ``results/<config name>``.
        num_runs: runs each of them must have.

    Raises:
        ResultsError: one has fewer finished runs, or runs on sample data, one is given twice, a file of results is
            damaged, or they were scored by different metrics.
    """
    check_distinct({str(out_dir): out_dir for out_dir in out_dirs}, len(out_dirs))
    read = {out_dir: finished_runs(out_dir) for out_dir in out_dirs}
    for notice in (line for one in read.values() for line in one.notices):
        logging.warning("%s", notice)
    runs = {out_dir: one.records for out_dir, one in read.items()}
    for out_dir, found in runs.items():
        if len(found) < num_runs:
            raise ResultsError(
                f"{out_dir} has {len(found)} finished runs, {num_runs} are wanted: train the missing ones"
            )
        if any(record.get("sample") for record in found.values()):
            raise ResultsError(f"{out_dir} holds runs on sample data (dataset.sample True), which no table shows")
        if len({record.get("experiment") for record in found.values()}) > 1:
            raise ResultsError(f"{out_dir} holds runs of different settings: give them folders of their own (name_tag)")
        for run_dir, record in found.items():
            _check_scored(run_dir, record)
    metrics = {record["metric_best"] for found in runs.values() for record in found.values()}
    if len(metrics) > 1:
        raise ResultsError(f"these experiments chose their epochs by different metrics ({', '.join(sorted(metrics))})")
    metric = metrics.pop()
    rows = [["", f"test {metric}", "n", "parameters", "s / epoch"]]
    rows += [[out_dir.name, *_row(list(found.values()), metric)] for out_dir, found in runs.items()]
    return "\n".join(["They differ in:", *_differences(read), "", *_columns(rows)])


def check_distinct(folders: dict[str, Path], count: int) -> None:
    """Refuse experiments that share a results folder: one would overwrite the other and be in the table as both.

    Args:
        folders: what each experiment is called -> its results folder.
        count: how many experiments were asked for, which is more where one was named twice.

    Raises:
        ResultsError: two have one folder; names both.
    """
    if len(folders) < count:
        raise ResultsError("one experiment is given twice: name each once")
    seen: dict[Path, str] = {}
    for name, folder in folders.items():
        other = seen.setdefault(folder.resolve(), name)
        if other != name:
            raise ResultsError(
                f"{other} and {name} have the same results folder, {folder}, which is named after the file: rename one "
                "of the files, or give it a name_tag of its own"
            )


def _check_scored(run_dir: Path, record: dict[str, Any]) -> None:
    metric, test = record.get("metric_best"), record.get("best", {}).get("test", {})
    if not is_number(test.get(metric)):
        raise ResultsError(f"{run_dir}/record.json holds no test score by {metric!r}: train it again with a test split")
    if not (is_count(record.get("params")) and is_number(record.get("seconds_per_epoch"))):
        raise ResultsError(f"{run_dir}/record.json lacks params or seconds_per_epoch: train it again")


def _row(records: list[dict[str, Any]], metric: str) -> list[str]:
    scores = [record["best"]["test"][metric] for record in records]
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    seconds = statistics.median(record["seconds_per_epoch"] for record in records)
    return [f"{statistics.mean(scores):.4f}{spread}", str(len(scores)), f"{records[0]['params']:,}", f"{seconds:.2f}"]


def _differences(runs: dict[Path, FinishedRuns]) -> list[str]:
    settings = [_settings(*next(iter(one.records.items()))) for one in runs.values()]
    keys = sorted({key for one in settings for key in one})
    # A group that only one experiment has belongs to a component that the others do not use.
    shared = [key for key in keys if all(key in one for one in settings)]
    lines = [
        f"  {key}: {' | '.join(str(one[key]) for one in settings)}"
        for key in shared
        if len({str(one[key]) for one in settings}) > 1
    ]
    return lines or ["  nothing"]


def _settings(run_dir: Path, record: dict[str, Any]) -> dict[str, Any]:
    settings = flatten(read_run_config(run_dir, record))
    return {key: value for key, value in settings if key not in NOT_COMPARED}


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
