"""record.json of a training run: opened when it starts, completed when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphgps_kmip.common.durations import now
from graphgps_kmip.common.environment import code_version, hardware, package_versions, peak_memory
from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_folder import SPLITS, stats_file, writing
from graphgps_kmip.results.run_record import read_record, write_record
from graphgps_kmip.train.epoch import Session
from graphgps_kmip.train.settings import RunState, TrainSettings


def check_folder(run_dir: Path, settings: TrainSettings) -> None:
    """Refuse to mix two runs in one folder.

    Raises:
        RunFolderError: it holds results that this run does not go on with.
    """
    record = read_record(run_dir) or {}
    goes_on = settings.auto_resume and record.get("config_hash") == settings.config_hash
    if not goes_on and any(stats_file(run_dir, split).exists() for split in SPLITS):
        raise RunFolderError(
            f"{run_dir} holds results of an earlier run; call prepare_run_dir first, which moves them aside, "
            "or set another out_dir."
        )


def open_record(run_dir: Path, settings: TrainSettings) -> dict[str, Any]:
    """Write and return the record of a run that is not finished, counting how often it was resumed."""
    earlier = read_record(run_dir) or {}
    resumed = stats_file(run_dir, "train").exists()
    record = {"finished": False, "config_hash": settings.config_hash, "resumes": earlier.get("resumes", 0) + resumed}
    with writing(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
    write_record(run_dir, record)
    return record


def closed_record(record: dict[str, Any], session: Session, state: RunState, wall_time: float) -> dict[str, Any]:
    """Return the record of a finished run.

    `wall_time` counts the seconds of all sessions up to the epochs that were kept; `seconds_per_epoch` is the mean over
    all epochs, evaluation included; `peak_memory` is that of the last session and process, in bytes; `best` holds the
    best epoch, its selecting value, and the statistics of every split at that epoch.
    """
    settings = session.settings
    return {
        **settings.notes,
        **record,
        "finished": True,
        "finished_at": now(),
        "name": settings.name,
        "seed": settings.seed,
        "precision": settings.precision,
        "processes": session.fabric.world_size,
        "code_version": code_version(),
        "packages": package_versions(),
        "hardware": hardware(session.fabric.device),
        "wall_time": wall_time,
        "seconds_per_epoch": state.seconds / settings.max_epoch,
        "peak_memory": peak_memory(),
        "params": session.num_params,
        "max_epoch": settings.max_epoch,
        "metric_best": session.task.metric_best,
        "best": state.best,
    }
