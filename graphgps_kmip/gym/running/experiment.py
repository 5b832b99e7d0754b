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
from torch_geometric.graphgym.logger import create_logger
from torch_geometric.graphgym.register import network_dict, optimizer_dict, scheduler_dict, train_dict

from graphgps_kmip.common.atomic_write import TEMPORARY
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.compat.key_translation import refuse
from graphgps_kmip.data import DatasetInfo, GraphDataset
from graphgps_kmip.errors import ConfigError, UserError, one_line
from graphgps_kmip.gym.building.network_building import build_model, current_plan, enter_width
from graphgps_kmip.gym.config.config_hash import config_hash
from graphgps_kmip.gym.config.config_loading import flatten
from graphgps_kmip.gym.config.pretrained import load_parameters
from graphgps_kmip.gym.graphgym_registries import of_others
from graphgps_kmip.gym.running.attention_arrays import save_attention
from graphgps_kmip.gym.running.data_loading import enter_info
from graphgps_kmip.gym.running.devices import check_devices
from graphgps_kmip.gym.running.loaders import current_loaders
from graphgps_kmip.gym.running.modes import TRAINING, check_mode
from graphgps_kmip.gym.running.optimizer import current_optimizer, current_scheduler
from graphgps_kmip.gym.running.run_log import log_to_run_dir
from graphgps_kmip.gym.running.task import current_task
from graphgps_kmip.gym.running.train_modes import current_settings
from graphgps_kmip.networks.branches import warn_of_unread_settings
from graphgps_kmip.ranges import SEED, refusal, whole
from graphgps_kmip.registry import components
from graphgps_kmip.results.run_folder import RESERVED, check_name, numbered, writing
from graphgps_kmip.results.run_record import is_finished
from graphgps_kmip.train import locked, make_fabric, on_rank_zero, prepare_run_dir, read_record, replace_file
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint

REPEATS = whole(1, 100_000)  # a slip of a digit would else fill the memory with planned runs


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
        ConfigError: both are asked for, ``repeat`` is not of `REPEATS`, a split is no index, or a name would lead out
            of its folder.
    """
    check_names()
    if why := refusal(REPEATS, repeat):
        raise ConfigError(f"--repeat: {why}")
    for split in cfg.run_multiple_splits:
        if isinstance(split, bool) or not isinstance(split, int) or split < 0:
            raise ConfigError(f"run_multiple_splits: {split!r} is no index of a split: give whole numbers from 0 on")
    if not cfg.run_multiple_splits:
        if not SEED.allows(cfg.seed + repeat - 1):
            raise ConfigError(f"--repeat {repeat} from seed {cfg.seed} on: a seed is {SEED}: lower one of the two")
        seeds = range(cfg.seed, cfg.seed + repeat)
        return [Run(str(seed), seed, cfg.dataset.split_index) for seed in seeds]
    if repeat > 1:
        raise ConfigError("--repeat and run_multiple_splits exclude each other: drop one of them")
    return [Run(str(split), cfg.seed, split) for split in cfg.run_multiple_splits]


def launch() -> Fabric:
    """Return the launched Fabric that the config asks for: device, precision, number of processes."""
    accelerator, _, index = cfg.accelerator.partition(":")  # public files say "cuda:0"
    devices = [int(index)] if index else cfg.devices
    check_devices(accelerator, devices)
    return make_fabric(accelerator, devices, cfg.train.precision)


def check_names() -> None:
    """Refuse a ``name_tag`` or ``cfg_dest`` that leads out of its folder, or that would overwrite results.

    Raises:
        ConfigError: it is no plain name; names the key.
    """
    check_name(cfg.name_tag, "name_tag")
    check_name(cfg.cfg_dest, "cfg_dest", ending=TEMPORARY)
    if not cfg.cfg_dest or cfg.cfg_dest.removesuffix(TEMPORARY) in RESERVED:
        raise ConfigError(
            f"cfg_dest: {cfg.cfg_dest!r} cannot name the config of a run, whose folder has other files of these names: "
            "give another one, such as config.yaml"
        )


def set_out_dir(file: Path) -> None:
    """Set ``cfg.out_dir`` to the folder of the experiment, see `results_folder`."""
    cfg.out_dir = str(results_folder(file, cfg.out_dir, cfg.name_tag, cfg.dataset.sample))


def results_folder(file: Path, out_dir: str, name_tag: str, sample: bool) -> Path:
    """Return ``<out_dir>/<name of the YAML>[-<name_tag>]``, GraphGPS's naming.

    Runs on sample data have a root of their own, ``<out_dir>-sample``: they must never stand among results.

    Raises:
        ConfigError: this is no name that a folder can have.
    """
    tag = f"-{name_tag}" if name_tag else ""
    check_name(file.stem, "name_tag, with the name of the file" if tag else "--cfg", ending=tag)
    return Path(f"{out_dir.rstrip('/')}-sample" if sample else out_dir) / f"{file.stem}{tag}"


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
    dims = info.dim_in, info.dim_out, info.dim_edge
    enter_width(*dims)
    cfg.freeze()
    current_task(), current_settings()  # their mistakes, too, must show before a folder is touched
    warn_of_unread_settings(current_plan())
    model = build_model(*dims)
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
            on_rank_zero(fabric, lambda: _complete_pictures(run_dir, key))
            return None
        check_mode(fabric.world_size)
        parts = assemble()  # before the folder is touched: a mistake must not cost earlier results their place
        loaders = current_loaders(parts.dataset, parts.info.level, fabric)
        optimizer = current_optimizer(parts.model)
        scheduler = current_scheduler(optimizer)
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        found = on_rank_zero(fabric, lambda: prepare_run_dir(run_dir, key, overwrite, cfg.train.auto_resume))
        if found == "finished":  # by the process whose lock this one waited for
            return None
        on_rank_zero(fabric, lambda: _write_config(run_dir / cfg.cfg_dest))
        log_to_run_dir(fabric)
        theirs = of_others()["train_mode"].get(cfg.train.mode)
        if theirs is None:
            mode = components("train_mode")[cfg.train.mode]
            record = mode(loaders, parts.model, optimizer, scheduler, fabric)
        else:
            record = theirs(create_logger(), loaders, parts.model.to(fabric.device), optimizer, scheduler)
        if fabric.is_global_zero:
            save_attention(parts.model, parts.dataset, run_dir / "attention.npz")
        return record


def _is_finished(run_dir: Path, key: str) -> bool:
    record = read_record(run_dir)
    return is_finished(record) and record.get("config_hash") == key


def _write_config(path: Path) -> None:
    with writing(path):
        replace_file(path, cfg.dump().encode())


def _complete_pictures(run_dir: Path, key: str) -> None:
    """Save what the attention picture shows, if the run was interrupted before: curves.png is made after it."""
    path = run_dir / "attention.npz"
    if path.exists() or (run_dir / "curves.png").exists() or cfg.train.mode not in components("train_mode"):
        return
    last = numbered(run_dir).get((read_record(run_dir) or {}).get("max_epoch", 0) - 1)
    if cfg.train.mode in TRAINING and last is None:
        logging.info("no attention picture: the run was interrupted before, and its last checkpoint is gone")
        return
    try:
        parts = assemble()
        if cfg.train.mode in TRAINING:
            load_model_state(parts.model, read_checkpoint(last, key)["model_state"], last)
    except UserError as error:  # the results are complete without it
        logging.warning("no attention picture: %s", one_line(error))
        return
    save_attention(parts.model, parts.dataset, path)
