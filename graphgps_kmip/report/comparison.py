"""Comparison of experiments: settings in which they differ, and test scores over seeds."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import is_number
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.report.result_table import Ours, split_overlap
from graphgps_kmip.report.welch import compare_runs, difference_text
from graphgps_kmip.results.run_record import finished_runs, read_run_config

# Where a run happened, not what it was.
NOT_COMPARED = ("out_dir", "run_dir", "seed", "custom_modules", "name_tag")


def comparison(out_dirs: list[Path], num_runs: int) -> str:
    """Return the settings in which experiments differ, and a table of test scores (mean and sample std) and costs.

    Next to each experiment but the first: its difference to the first, with a 95 % interval.

    Args:
        out_dirs: results folders, ``results/<config name>``.
        num_runs: runs each of them must have.
    """
    check_distinct({str(out_dir): out_dir for out_dir in out_dirs}, len(out_dirs))
    runs = {}
    for out_dir in out_dirs:
        records, _ = finished_runs(out_dir)
        runs[out_dir] = records
        if len(records) < num_runs:
            raise ResultsError(
                f"{out_dir} has {len(records)} finished runs, {num_runs} are wanted: train the missing ones"
            )
        if any(record.get("sample") for record in records.values()):
            raise ResultsError(f"{out_dir} holds runs on sample data (dataset.sample True), which no table shows")
        if len({record.get("experiment") for record in records.values()}) > 1:
            raise ResultsError(f"{out_dir} holds runs of different settings: give them folders of their own (name_tag)")
        for run_dir, record in records.items():
            metric, test = record.get("metric_best"), record.get("best", {}).get("test", {})
            if not is_number(test.get(metric)):
                raise ResultsError(
                    f"{run_dir}/record.json holds no test score by {metric!r}: train it again with a test split"
                )
    metrics = sorted({record["metric_best"] for records in runs.values() for record in records.values()})
    if len(metrics) > 1:
        raise ResultsError(f"these experiments chose their epochs by different metrics ({', '.join(metrics)})")
    sides = {out_dir: read_side(records, metrics[0]) for out_dir, records in runs.items()}
    baseline, compared = next(iter(sides.values())), len(sides) > 1 and min(side.n for side in sides.values()) > 1
    rows = [["", f"test {metrics[0]}", "n", "parameters", "s / epoch", "difference" if compared else ""]]
    for out_dir, side in sides.items():
        records = list(runs[out_dir].values())
        seconds = statistics.median(record["seconds_per_epoch"] for record in records)
        mean = f"{side.mean:.4f}" + ("" if side.std is None else f" ± {side.std:.4f}")
        shown = compared and side is not baseline
        difference = difference_text(compare_runs(side, baseline), 4) if shown else ""
        rows.append([out_dir.name, mean, f"{side.n}", f"{records[0]['params']:,}", f"{seconds:.2f}", difference])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    first_runs = [next(iter(records.items())) for records in runs.values()]
    test = "the corrected resampled t over splits (Nadeau and Bengio 2003)" if baseline.overlap != 0 else "Welch's t"
    below = ["", f"difference: to {out_dirs[0].name}, with the 95 % interval of {test}"] if compared else []
    return "\n".join(["They differ in:", *_differences(first_runs), "", *lines, *below])


def read_side(records: dict[Path, dict[str, Any]], metric: str, split: str = "test") -> Ours:
    """Return the scores of runs by seed; by split where the runs have different ones."""
    values = tuple(record["best"][split][metric] for record in records.values())
    data = [read_run_config(run_dir, record).get("dataset", {}) for run_dir, record in records.items()]
    splits = tuple(settings.get("split_index", 0) for settings in data)
    if len(set(splits)) == 1:
        return Ours(values, tuple(range(len(values))), len(values))
    return Ours(values, splits, len(values), overlap=split_overlap(data[0]["format"], data[0]["name"]))


def check_distinct(folders: dict[str, Path], count: int) -> None:
    """Refuse experiments that share a results folder: one would overwrite the other and be in the table as both.

    Args:
        folders: what each experiment is called -> its results folder.
        count: how many experiments were asked for, which is more where one was named twice.
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


def _differences(runs: list[tuple[Path, dict[str, Any]]]) -> list[str]:
    configs = [dict(flatten(read_run_config(run_dir, record))) for run_dir, record in runs]
    # A group that only one experiment has belongs to a component that the others do not use.
    shared = sorted(set.intersection(*map(set, configs)) - set(NOT_COMPARED))
    values = {key: [str(config[key]) for config in configs] for key in shared}
    return [f"  {key}: {' | '.join(texts)}" for key, texts in values.items() if len(set(texts)) > 1] or ["  nothing"]
