"""Finished runs of an experiment: records checked against statistics and configs; reasons why others do not count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.yaml_files import parse_yaml
from graphgps_kmip.errors import ResultsError, RunFolderError
from graphgps_kmip.results.run_folder import CONFIG, SPLITS, run_folders, stats_file
from graphgps_kmip.results.run_record import damage_line, examine_record, is_finished, trained_epochs
from graphgps_kmip.results.run_stats import Line, lost_epochs, read_run, same_line


@dataclass(frozen=True)
class FinishedRuns:
    """The runs in a results folder.

    Args:
        records: folder of each finished run -> its record, by number.
        left_out: folder of each other run -> why it does not count.
        notices: lines for the user about folders whose content is damaged or doubtful.
    """

    records: dict[Path, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[Path, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def finished_runs(out_dir: Path, experiment: str | None = None) -> FinishedRuns:
    """Return the finished runs in a results folder.

    A run whose `config_hash` another one has too is a copy of it, or has its record: it is not counted twice.

    Args:
        out_dir: ``<out_dir>/<config name>``; its runs are the folders whose names are whole numbers.
        experiment: count only runs whose record has this `experiment`; None: all.

    Raises:
        RunFolderError: a record cannot be read.
    """
    found = FinishedRuns()
    hashes: dict[str, Path] = {}
    for folder in run_folders(out_dir):
        record, damage = examine_record(folder)
        if damage:
            found.notices.append(damage_line(folder, damage))
        if not is_finished(record):
            found.left_out[folder] = "its record is damaged" if damage else "it is unfinished"
        elif experiment is not None and record.get("experiment") != experiment:
            found.left_out[folder] = "it is of other settings"
        elif (key := record.get("config_hash")) and key in hashes:
            found.left_out[folder] = f"it has the record of run {hashes[key].name}"
            found.notices.append(
                f"{folder} has the record of {hashes[key].name} (config_hash {key}), and is not counted: move it away"
            )
        else:
            found.records[folder] = record
            hashes[key or str(folder)] = folder
    return found


def read_finished(run_dir: Path, record: dict[str, Any]) -> dict[str, dict[int, Line]]:
    """Return the statistics of a finished run: split -> epoch -> line, with all its epochs.

    Raises:
        ResultsError: a file is damaged, epochs are lost, or the best epoch is not what the record says of it.
    """
    run = read_run(run_dir)
    fix = f"restore the file, or move {run_dir} away and train again."
    if lost := lost_epochs(run_dir, "train", range(trained_epochs(record))):
        raise ResultsError(f"{lost} of a finished run; {fix}")
    best = record.get("best", {})
    for split in SPLITS:
        line = best.get(split)
        if line and "epoch" in line and not same_line(line, run.get(split, {}).get(line["epoch"])):
            raise ResultsError(
                f"{stats_file(run_dir, split)} and record.json differ in epoch {line['epoch']}, the best one; {fix}"
            )
    return run


def read_run_config(run_dir: Path, record: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a run as nested mappings.

    Args:
        run_dir: its folder.
        record: its record, which names the file where it is not ``config.yaml``.

    Raises:
        ResultsError: the file is missing or damaged.
    """
    path = config_file(run_dir, record)
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path} is missing: restore the file, or train it again") from None
    except OSError as error:
        raise RunFolderError(f"Cannot read {path}: {error.strerror}; make it readable") from error
    except ValueError as error:  # a ConfigError, or no UTF-8
        raise ResultsError(f"{path} is damaged, it is no YAML: restore the file, or train it again") from error
    if not isinstance(content, dict):
        raise ResultsError(f"{path} is damaged, it holds no settings: restore the file, or train it again")
    return content


def config_file(run_dir: Path, record: dict[str, Any] | None = None) -> Path:
    """Return the path of a run's config, whose name `cfg_dest` may have set."""
    return run_dir / (record or {}).get("config_file", CONFIG)
