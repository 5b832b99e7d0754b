"""record.json, stats.json and config of runs: reading, writing, and which runs of an experiment are finished."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graphgps_kmip.common.atomic_write import Damaged, is_count, is_number, parsed_object, read_bytes, replace_file
from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.run_folder import CONFIG, RECORD, SPLITS, run_folders, stats_file, writing

log = logging.getLogger(__name__)
Line = dict[str, Any]
# Keys of a line that are neither the loss nor a metric.
BOOKKEEPING = ("epoch", "time_epoch", "time_iter", "eta", "eta_hours", "lr", "params")


def examine_record(run_dir: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the record of a run or command, None if there is none, and what is wrong with a damaged one."""
    try:
        text = read_bytes(run_dir / RECORD)
        return (None, "") if text is None else (parsed_object(text), "")
    except Damaged as damage:
        return None, str(damage)


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Return the record of a run, None if there is none; a damaged one counts as none, and the log says so."""
    record, damage = examine_record(run_dir)
    if damage:
        log.warning(
            f"{run_dir / RECORD} is damaged ({damage}): this run does not count as finished; restore the file, or "
            "train again, which moves the folder aside"
        )
    return record


def is_finished(record: dict[str, Any] | None) -> bool:
    """Return whether a record is that of a finished run or command."""
    return record is not None and record.get("finished") is True


def write_record(run_dir: Path, record: dict[str, Any]) -> None:
    """Replace the record of a run; a `RunFolderError` if it cannot be written."""
    with writing(run_dir / RECORD):
        replace_file(run_dir / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def rounded(stats: Line, digits: int) -> Line:
    """Return the statistics with floats cut to this number of significant digits (a rate of 1e-9 stays 1e-9)."""
    return {key: float(f"{value:.{digits}g}") if isinstance(value, float) else value for key, value in stats.items()}


def read_stats(run_dir: Path | str, split: str) -> dict[int, Line]:
    """Return the lines of `<run_dir>/<split>/stats.json` by epoch, in increasing order; empty if there are none.

    Dropped: what follows the last end of line, cut off by a kill; of two lines for one epoch the earlier.

    Raises:
        ResultsError: the file is damaged; names file and line.
    """
    path = stats_file(Path(run_dir), split)
    lines: dict[int, Line] = {}
    for number, text in enumerate((read_bytes(path) or b"").split(b"\n")[:-1], start=1):
        try:
            line = parsed_object(text)
            if not is_count(line.get("epoch")):
                raise Damaged("it has no epoch")
        except Damaged as damage:
            raise ResultsError(
                f"{path}, line {number} is not a JSON line with an epoch ({damage}); restore the file, or move "
                f"{run_dir} away and train again."
            ) from damage
        lines[line["epoch"]] = line
    return dict(sorted(lines.items()))


def read_run(run_dir: Path | str) -> dict[str, dict[int, Line]]:
    """Return the lines of every split that has some: split -> epoch -> line."""
    return {split: lines for split in SPLITS if (lines := read_stats(run_dir, split))}


def append_stats(run_dir: Path, split: str, stats: Line) -> None:
    """Append one line of JSON to the split's file, which stays as it was if that raises a `RunFolderError`."""
    path = stats_file(run_dir, split)
    with writing(path, "The lines of earlier epochs are unchanged."):
        path.parent.mkdir(parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(stats) + "\n")
        except OSError:
            if path.exists():
                os.truncate(path, size)  # a full disk takes a part of a line
            raise


def write_stats(run_dir: Path, split: str, *lines: Line) -> None:
    """Replace the split's file by these lines; a `RunFolderError` if it cannot be written."""
    write_lines(stats_file(run_dir, split), lines)


def write_lines(path: Path, lines: Iterable[Line], safe: str = "What was there before is unchanged.") -> None:
    """Replace a file by lines of JSON; `safe` ends the message of a failure."""
    with writing(path, safe):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, "".join(json.dumps(line) + "\n" for line in lines).encode())


def trim_stats(run_dir: Path, epoch: int) -> None:
    """Drop the lines after `epoch`, and the part of a line that a killed run left at the end."""
    for split, lines in {split: read_stats(run_dir, split) for split in SPLITS}.items():
        if stats_file(run_dir, split).exists():
            write_stats(run_dir, split, *(line for number, line in lines.items() if number <= epoch))


def sync_stats(run_dir: Path) -> None:
    """Force the lines written so far to disk: a checkpoint that outlives a power failure needs its statistics."""
    for path in (stats_file(run_dir, split) for split in SPLITS):
        if path.exists():
            with writing(path), open(path, "rb") as file:
                os.fsync(file.fileno())


def numbers(line: Line) -> list[str]:
    """Return the keys of a line whose values are numbers."""
    return [key for key, value in line.items() if is_number(value)]


def metric_names(line: Line) -> list[str]:
    """Return the metrics that a line holds, in its order, without the loss."""
    return [key for key in numbers(line) if key not in (*BOOKKEEPING, "loss")]


def finished_runs(out_dir: Path, experiment: str | None = None) -> tuple[dict[Path, dict[str, Any]], list[Path]]:
    """Return the records of the finished runs in a results folder by their folders, and the folders of the other runs.

    Damaged records are not counted, and logged.

    Args:
        out_dir: ``<out_dir>/<config name>``; its runs are the folders whose names are whole numbers.
        experiment: count only runs whose record has this `experiment`; None: all.
    """
    records: dict[Path, dict[str, Any]] = {}
    others: list[Path] = []
    for folder in run_folders(out_dir):
        record = read_record(folder)
        if is_finished(record) and (experiment is None or record.get("experiment") == experiment):
            records[folder] = record
        else:
            others.append(folder)
    return records, others


def read_finished(run_dir: Path, record: dict[str, Any]) -> dict[str, dict[int, Line]]:
    """Return the statistics of a finished run, split -> epoch -> line; a `ResultsError` if epochs are lost."""
    run = read_run(run_dir)
    for epoch in range(record.get("epochs", 0)):
        if epoch not in run.get("train", {}):
            raise ResultsError(
                f"{stats_file(run_dir, 'train')} lacks epoch {epoch} of a finished run; restore the file, or move "
                f"{run_dir} away and train again."
            )
    return run


def read_run_config(run_dir: Path, record: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a run as nested mappings; a `ResultsError` if the file is missing or damaged."""
    path = config_file(run_dir, record)
    if not path.exists():
        raise ResultsError(f"{path} is missing: restore the file, or train it again")
    return read_yaml(path, error_type=ResultsError)


def config_file(run_dir: Path, record: dict[str, Any] | None = None) -> Path:
    """Return the path of a run's config, whose name `cfg_dest` may have set."""
    return run_dir / (record or {}).get("config_file", CONFIG)
