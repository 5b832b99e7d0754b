"""record.json: opened when a run starts, completed when it ends.

What a run ran on: code version, packages, hardware.
"""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import graphgps_kmip
from graphgps_kmip.errors import RunFolderError
from graphgps_kmip.results.run_folder import SPLITS, stats_file, writing
from graphgps_kmip.results.run_record import read_record, write_record
from graphgps_kmip.train.epoch import Session
from graphgps_kmip.train.out_of_memory import peak_memory
from graphgps_kmip.train.settings import RunState, TrainSettings

PACKAGES = ("torch", "torch_geometric", "pykeops", "numpy")


def code_version() -> str:
    """Return git's description of the commit where the package lies in its own repository, else its version."""
    folder = Path(graphgps_kmip.__file__).parent
    # Asked first: an installed package may lie inside somebody else's repository.
    tracked = _git(folder, "ls-files", "--error-unmatch", "__init__.py")
    described = _git(folder, "describe", "--always", "--dirty", "--tags") if tracked else ""
    return described or graphgps_kmip.__version__


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a result; those not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    versions["torch"] = torch.__version__  # with its build: the metadata of the public CUDA wheels leaves that out
    return versions


def hardware(device: torch.device) -> dict[str, str | int]:
    """Return the CPU's model, the cores this process may use, and the GPU if `device` is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = {"cpu": _cpu_model(), "cores": cores, "device": str(device)}
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _git(folder: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


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
        "finished_at": datetime.now().astimezone().isoformat(timespec="seconds"),
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
