"""Finished runs of an experiment: their records, statistics and configs; reasons why others do not count."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphgps_kmip.common.yaml_files import read_yaml
from graphgps_kmip.errors import ResultsError
from graphgps_kmip.results.run_folder import CONFIG, run_folders, stats_file
from graphgps_kmip.results.run_record import Line, damage_line, examine_record, is_finished, read_run, trained_epochs


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
    """
    finished = FinishedRuns()
    hashes: dict[str, Path] = {}
    for folder in run_folders(out_dir):
        record, damage = examine_record(folder)
        if damage:
            finished.notices.append(damage_line(folder, damage))
        if not is_finished(record):
            finished.left_out[folder] = "its record is damaged" if damage else "it is unfinished"
        elif experiment is not None and record.get("experiment") != experiment:
            finished.left_out[folder] = "it is of other settings"
        elif (key := record.get("config_hash")) and key in hashes:
            finished.left_out[folder] = f"it has the record of run {hashes[key].name}"
            finished.notices.append(
                f"{folder} has the record of {hashes[key].name} (config_hash {key}), and is not counted: move it away"
            )
        else:
            finished.records[folder] = record
            hashes[key or str(folder)] = folder
    return finished


def read_finished(run_dir: Path, record: dict[str, Any]) -> dict[str, dict[int, Line]]:
    """Return the statistics of a finished run: split -> epoch -> line, with all its epochs.

    Raises:
        ResultsError: a file is damaged, or epochs are lost.
    """
    run = read_run(run_dir)
    for epoch in range(trained_epochs(record)):
        if epoch not in run.get("train", {}):
            raise ResultsError(
                f"{stats_file(run_dir, 'train')} lacks epoch {epoch} of a finished run; restore the file, or move "
                f"{run_dir} away and train again."
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
    if not path.exists():
        raise ResultsError(f"{path} is missing: restore the file, or train it again")
    return read_yaml(path, error_type=ResultsError)


def config_file(run_dir: Path, record: dict[str, Any] | None = None) -> Path:
    """Return the path of a run's config, whose name `cfg_dest` may have set."""
    return run_dir / (record or {}).get("config_file", CONFIG)
