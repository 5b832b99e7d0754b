"""One experiment: a config, trained for several seeds or splits, each into a folder of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn
from torch_geometric import seed_everything
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.loader import load_dataset
from torch_geometric.graphgym.logger import create_logger, set_printing
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.graphgym.optim import create_scheduler
from torch_geometric.graphgym.register import network_dict, optimizer_dict, scheduler_dict, train_dict

from graphgps_kmip.data import DatasetInfo, GraphDataset
from graphgps_kmip.gym.branches import warn_of_unread_settings
from graphgps_kmip.gym.budget import enter_width
from graphgps_kmip.gym.compat import refuse
from graphgps_kmip.gym.data import enter_info
from graphgps_kmip.gym.errors import ConfigError, look_up
from graphgps_kmip.gym.fingerprint import config_hash
from graphgps_kmip.gym.load import flatten
from graphgps_kmip.gym.loaders import current_loaders
from graphgps_kmip.gym.modes import MODES, check_mode
from graphgps_kmip.gym.optimizer import current_optimizer
from graphgps_kmip.gym.pictures import save_attention
from graphgps_kmip.gym.pretrained import load_parameters
from graphgps_kmip.gym.task import current_task
from graphgps_kmip.gym.train import current_settings
from graphgps_kmip.train import locked, make_fabric, on_rank_zero, prepare_run_dir, read_record, replace_file


@dataclass(frozen=True)
class Run:
    """One training: the name of its folder, its seed and its split."""

    name: str
    seed: int
    split_index: int


@dataclass(frozen=True)
class Parts:
    """What a run is made of once its data is loaded."""

    dataset: GraphDataset
    info: DatasetInfo
    model: nn.Module


def planned_runs(repeat: int) -> list[Run]:
    """Return the runs of the loaded config: ``repeat`` seeds from ``cfg.seed`` on, or ``cfg.run_multiple_splits``.

    Raises:
        ConfigError: both are asked for, or ``repeat`` is below 1.
    """
    if repeat < 1:
        raise ConfigError(f"--repeat: expected 1 or more, got {repeat}")
    if not cfg.run_multiple_splits:
        seeds = range(cfg.seed, cfg.seed + repeat)
        return [Run(str(seed), seed, cfg.dataset.split_index) for seed in seeds]
    if repeat > 1:
        raise ConfigError("--repeat and run_multiple_splits exclude each other: drop one of them")
    return [Run(str(split), cfg.seed, split) for split in cfg.run_multiple_splits]


def launch() -> Fabric:
    """Return the launched Fabric that the config asks for: device, precision, number of processes."""
    accelerator, _, index = cfg.accelerator.partition(":")  # public files say "cuda:0"
    devices = [int(index)] if index else cfg.devices
    return make_fabric(accelerator, devices, cfg.train.precision)


def set_out_dir(file: Path) -> None:
    """Set ``cfg.out_dir`` to ``<out_dir>/<name of the YAML>[-<name_tag>]``, GraphGPS's naming.

    Runs on sample data have a root of their own, ``<out_dir>-sample``: they must never stand among results.
    """
    tag = f"-{cfg.name_tag}" if cfg.name_tag else ""
    root = f"{cfg.out_dir.rstrip('/')}-sample" if cfg.dataset.sample else cfg.out_dir
    cfg.out_dir = str(Path(root) / f"{file.stem}{tag}")


@contextmanager
def configured(run: Run) -> Iterator[None]:
    """Set ``cfg`` for one run, and put it back afterwards."""
    before = cfg.clone()
    cfg.seed, cfg.dataset.split_index = run.seed, run.split_index
    cfg.run_dir = str(Path(cfg.out_dir) / run.name)
    try:
        yield
    finally:
        cfg.defrost()
        cfg.clear()
        cfg.update(before)


def assemble() -> Parts:
    """Load the data, freeze ``cfg``, build the model; the same seed gives the same initial weights.

    The parameters of ``pretrained.dir``, if there is one, take their place.
    """
    refuse(dict(flatten(cfg)))
    # OMP_NUM_THREADS ("4", or "4,2" by levels): the share of a run that is one of several on this machine
    most = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    torch.set_num_threads(min(cfg.num_threads, int(most.split(",")[0])))
    seed_everything(cfg.seed)
    dataset = load_dataset()
    info = enter_info(dataset)
    for table, name, key in (
        (network_dict, cfg.model.type, "model.type"),
        (optimizer_dict, cfg.optim.optimizer, "optim.optimizer"),
        (scheduler_dict, cfg.optim.scheduler, "optim.scheduler"),
        (train_dict, cfg.train.mode, "train.mode"),
    ):
        look_up(table, name, key)
    enter_width()
    cfg.freeze()
    current_task(), current_settings()  # their mistakes, too, must show before a folder is touched
    warn_of_unread_settings()
    model = create_model(to_device=False)
    load_parameters(model)
    return Parts(dataset, info, model)


def execute(run: Run, fabric: Fabric, overwrite: bool = False) -> dict[str, Any] | None:
    """Train one run into ``cfg.out_dir/<name>`` and return its final record; None if it was finished before.

    Args:
        run: which one.
        fabric: launched; decides device, precision and processes.
        overwrite: repeat a finished run of the same configuration; its folder is moved aside, never deleted.
    """
    with configured(run), ExitStack() as stack:
        run_dir, key = Path(cfg.run_dir), config_hash(cfg)
        if not overwrite and on_rank_zero(fabric, lambda: _is_finished(run_dir, key)):
            logging.warning("%s is finished and is not repeated; --overwrite starts anew", run_dir)
            return None
        check_mode(fabric.world_size)
        parts = assemble()  # before the folder is touched: a mistake must not cost earlier results their place
        loaders = current_loaders(parts.dataset, parts.info.level, fabric)
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        on_rank_zero(fabric, lambda: prepare_run_dir(run_dir, key, overwrite, cfg.train.auto_resume))
        _log_to_run_dir(fabric)
        on_rank_zero(fabric, lambda: replace_file(run_dir / cfg.cfg_dest, cfg.dump().encode()))
        optimizer = current_optimizer(parts.model)
        scheduler = create_scheduler(optimizer, cfg.optim)
        mode = train_dict[cfg.train.mode]
        if mode is MODES.get(cfg.train.mode):  # ours: needs the Fabric, for which GraphGym's signature has no place
            record = mode([], loaders, parts.model, optimizer, scheduler, fabric)
        else:
            record = mode(create_logger(), loaders, parts.model.to(fabric.device), optimizer, scheduler)
        if fabric.is_global_zero:
            save_attention(parts.model, parts.dataset, run_dir / "attention.npz")
        return record


def _is_finished(run_dir: Path, key: str) -> bool:
    record = read_record(run_dir) or {}
    return bool(record.get("finished")) and record.get("config_hash") == key


def _log_to_run_dir(fabric: Fabric) -> None:
    """Log to screen and ``cfg.run_dir/logging.log`` as ``cfg.print`` says; further processes show warnings only."""
    if fabric.is_global_zero:
        set_printing()
    else:
        logging.basicConfig(level=logging.WARNING, format=f"process {fabric.global_rank}: %(message)s", force=True)
