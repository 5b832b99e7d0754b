"""Experiment: a config trained for several seeds or splits, each in a folder of its own; devices and log of a run."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch_geometric import seed_everything
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.logger import create_logger, set_printing
from torch_geometric.graphgym.register import network_dict, optimizer_dict, scheduler_dict, train_dict
from yacs.config import CfgNode

from graphgps_kmip.common.environment import restart_peak_memory
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.screen_log import LogUntilError, ScreenLog
from graphgps_kmip.compat.key_translation import refuse
from graphgps_kmip.data import DatasetInfo, GraphDataset
from graphgps_kmip.errors import ConfigError, UserError, one_line
from graphgps_kmip.gym.attention_arrays import save_attention
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import flatten
from graphgps_kmip.gym.data_loading import current_loaders, dataset_info, load_configured
from graphgps_kmip.gym.derived_settings import served, with_facts
from graphgps_kmip.gym.graphgym_registries import of_others
from graphgps_kmip.gym.network_building import build_model, plan_of, with_width
from graphgps_kmip.gym.planned_runs import Run, configured
from graphgps_kmip.gym.pretrained import load_parameters
from graphgps_kmip.gym.score_saving import save_scores, the_graph
from graphgps_kmip.gym.sparse_settings import check_keeps_best, is_estimator, is_sparse
from graphgps_kmip.gym.train_modes import (
    RESUMED,
    TRAINING,
    check_mode,
    current_optimizer,
    current_scheduler,
    current_settings,
    current_task,
    run_mode,
)
from graphgps_kmip.networks.branches import refuse_unread_recipe, warn_of_unread_settings
from graphgps_kmip.registry import components
from graphgps_kmip.results.run_folder import numbered, scores_file, writing
from graphgps_kmip.results.run_record import is_finished, trained_epochs
from graphgps_kmip.train import locked, make_fabric, on_rank_zero, prepare_run_dir, read_record, replace_file
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def check_devices(accelerator: str, devices: int | list[int]) -> None:
    """Refuse devices that this machine does not have.

    Args:
        accelerator: "auto", "cpu", "cuda", "gpu", "mps" or "tpu".
        devices: how many, or which.

    Raises:
        ConfigError: there is no such device, or not so many.
    """
    here = f"{accelerator}:{devices[0]}" if isinstance(devices, list) else accelerator
    if accelerator in ("cpu", "auto") and isinstance(devices, list):
        raise ConfigError(f"accelerator {here}: only cuda devices have numbers: write accelerator {accelerator}")
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("accelerator mps: this machine has no such device: write accelerator auto, or cpu")
    if accelerator == "tpu":
        raise ConfigError("accelerator tpu: this package has not been made for it: write accelerator auto, cuda or cpu")
    if accelerator not in ("cuda", "gpu"):
        return
    found = torch.cuda.device_count()
    if not found:
        raise ConfigError(
            f"accelerator {here}: torch finds no CUDA device on this machine: write accelerator auto, or cpu"
        )
    if isinstance(devices, list) and devices[0] >= found:
        raise ConfigError(f"accelerator {here}: this machine has {found} CUDA devices, numbered from 0: choose one")
    if isinstance(devices, int) and devices > found:
        raise ConfigError(f"devices {devices}: this machine has {found} CUDA devices: write {found} or fewer")


def check_restarts(overwrite: bool) -> None:
    """Refuse settings with which a restart by torchrun would lose what was trained before it.

    Args:
        overwrite: the command line repeats finished runs.

    Raises:
        ConfigError: torchrun may start the processes again, and they would not go on from the newest checkpoint.
    """
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and (overwrite or not cfg.train.auto_resume or cfg.train.epoch_resume >= 0):
        raise ConfigError(
            f"torchrun --max-restarts {restarts}: a restart must go on from the newest checkpoint: set "
            "train.auto_resume True, leave train.epoch_resume at -1, and leave out --overwrite"
        )


SAFE = "The results so far are unchanged."


class RunLog(LogUntilError, logging.FileHandler):
    """File of a run's log; a full disk ends the run with one line, not with a traceback for each line of the log."""

    def ended(self, error: OSError) -> None:
        """Raise it, once, as a `RunFolderError`."""
        with writing(Path(self.baseFilename), SAFE):
            raise error


def log_to_run_dir(fabric: Fabric) -> None:
    """Log to screen and ``cfg.run_dir/logging.log`` as ``cfg.print`` says; further processes show warnings only.

    Raises:
        RunFolderError: the file cannot be written, now or later.
    """
    if not fabric.is_global_zero:
        logging.basicConfig(level=logging.WARNING, format=f"process {fabric.global_rank}: %(message)s", force=True)
        return
    with writing(Path(cfg.run_dir) / "logging.log", SAFE):
        set_printing()
        for handler in logging.root.handlers[:]:
            logging.root.removeHandler(handler)
            handler.close()
            logging.root.addHandler(_ours(handler))


def _ours(handler: logging.Handler) -> logging.Handler:
    """Return our handler in the place of GraphGym's."""
    if not isinstance(handler, logging.FileHandler):
        return ScreenLog(handler.formatter)
    ours = RunLog(handler.baseFilename)
    ours.setFormatter(handler.formatter)
    return ours


@dataclass(frozen=True)
class Parts:
    """What a run is made of once its data is loaded.

    Args:
        dataset (GraphDataset): All graphs.
        info (DatasetInfo): Their facts.
        config (CfgNode): ``cfg`` with these facts and the chosen width, frozen; the config that a run writes.
        model (nn.Module): Network.
    """

    dataset: GraphDataset
    info: DatasetInfo
    config: CfgNode
    model: nn.Module


def launch() -> Fabric:
    """Return the launched Fabric that the config asks for: device, precision, number of processes."""
    accelerator, _, index = cfg.accelerator.partition(":")  # public files say "cuda:0"
    devices = [int(index)] if index else cfg.devices
    check_devices(accelerator, devices)
    return make_fabric(accelerator, devices, cfg.train.precision)


def assemble() -> Parts:
    """Freeze ``cfg``, load the data, build the model; the same seed gives the same initial weights.

    The parameters of ``pretrained.dir``, if there is one, take their place.
    """
    cfg.freeze()  # nothing below may write into it: facts of the data travel as values
    refuse(dict(flatten(cfg)))
    # OMP_NUM_THREADS ("4", or "4,2" by levels): the share of a run that is one of several on this machine
    most = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    torch.set_num_threads(min(cfg.num_threads, int(most.split(",")[0])))
    seed_everything(cfg.seed)
    loaded = load_configured()
    info = dataset_info(loaded.dataset)
    for table, name, key in (
        (network_dict, cfg.model.type, "model.type"),
        (optimizer_dict, cfg.optim.optimizer, "optim.optimizer"),
        (scheduler_dict, cfg.optim.scheduler, "optim.scheduler"),
        (train_dict, cfg.train.mode, "train.mode"),
    ):
        look_up(table, name, key)
    config = with_width(with_facts(cfg, info, loaded.facts))
    current_task(info.dim_out), current_settings()  # their mistakes, too, must show before a folder is touched
    refuse_unread_recipe(plan_of(config))
    warn_of_unread_settings(plan_of(config))
    model = build_model(config)
    load_parameters(model)
    return Parts(loaded.dataset, info, config, model)


def execute(run: Run, fabric: Fabric, overwrite: bool = False, keep_scores: bool = False) -> dict[str, Any] | None:
    """Train one run into ``cfg.out_dir/<name>`` and return its final record; None if it was finished before.

    Args:
        run: which one.
        fabric: launched; decides device, precision and processes.
        overwrite: repeat a finished run of the same configuration; its folder is moved aside, never deleted.
        keep_scores: write the scores of its attention, as a score estimator does in any case.
    """
    with configured(run), ExitStack() as stack:
        run_dir, key = Path(cfg.run_dir), config_hash(cfg)
        if not overwrite and on_rank_zero(fabric, lambda: _is_finished(run_dir, key)):
            logging.warning("%s is finished and is not repeated; --overwrite starts anew", run_dir)
            on_rank_zero(fabric, lambda: _complete_pictures(run_dir, key))
            on_rank_zero(fabric, lambda: _complete_scores(run_dir, keep_scores))
            return None
        check_mode(fabric.world_size)
        restart_peak_memory()  # of another run in this process
        parts = assemble()  # before the folder is touched: a mistake must not cost earlier results their place
        writes_scores = _writes_scores(keep_scores)
        if writes_scores:
            check_keeps_best(cfg), the_graph(parts.dataset, parts.info.level)
        loaders = current_loaders(parts.dataset, parts.info.level, fabric)
        optimizer = current_optimizer(parts.model)
        scheduler = current_scheduler(optimizer)
        on_rank_zero(fabric, lambda: stack.enter_context(locked(run_dir)))
        resume = cfg.train.auto_resume or cfg.train.mode in RESUMED
        found = on_rank_zero(fabric, lambda: prepare_run_dir(run_dir, key, overwrite, resume))
        if found == "finished":  # by the process whose lock this one waited for
            return None
        on_rank_zero(fabric, lambda: _write_config(run_dir / cfg.cfg_dest, parts.config))
        log_to_run_dir(fabric)
        record = _run_mode(parts, (loaders, parts.model, optimizer, scheduler), fabric)
        if fabric.is_global_zero and not is_sparse(cfg):  # whose model takes no whole graph
            save_attention(parts.model, parts.dataset, run_dir / "attention.npz")
        if writes_scores:
            on_rank_zero(fabric, lambda: save_scores(parts.model, parts.dataset, parts.info.level, run_dir))
        return record


def is_done(run: Run) -> bool:
    """Return whether a run is finished and needs no training."""
    with configured(run):
        return _is_finished(Path(cfg.run_dir), config_hash(cfg))


def _writes_scores(keep_scores: bool) -> bool:
    return cfg.train.mode in TRAINING and (keep_scores or is_estimator(cfg))


def _complete_scores(run_dir: Path, keep_scores: bool) -> None:
    """Write the scores of a finished run that lacks them: it was interrupted before, or nobody asked for them.

    Raises:
        UserError: it is not possible, and somebody asked for them.
    """
    if not _writes_scores(keep_scores) or scores_file(run_dir).exists():
        return
    try:
        parts = assemble()
        save_scores(parts.model, parts.dataset, parts.info.level, run_dir)
    except UserError as error:
        if keep_scores:
            raise
        logging.warning("no scores: %s", one_line(error))  # the results are complete without them


def _run_mode(parts: Parts, given: tuple[Any, ...], fabric: Fabric) -> dict[str, Any]:
    """Run ``train.mode``: ours gets the config with the facts as an argument if it takes one, GraphGym's in ``cfg``."""
    name = parts.config.train.mode
    mode = components("train_mode").get(name)
    if mode is not None:
        return run_mode(mode, parts.config, *given, fabric)
    loaders, model, *rest = given
    with served(parts.config):
        return of_others()["train_mode"][name](create_logger(), loaders, model.to(fabric.device), *rest)


def _is_finished(run_dir: Path, key: str) -> bool:
    record = read_record(run_dir)
    return is_finished(record) and record.get("config_hash") == key


def _write_config(path: Path, config: CfgNode) -> None:
    with writing(path):
        replace_file(path, config.dump().encode())


def _complete_pictures(run_dir: Path, key: str) -> None:
    """Save what the attention picture shows, if the run was interrupted before: curves.png is made after it."""
    path = run_dir / "attention.npz"
    if path.exists() or (run_dir / "curves.png").exists() or cfg.train.mode not in components("train_mode"):
        return
    if is_sparse(cfg):
        return
    last = numbered(run_dir).get(trained_epochs(read_record(run_dir) or {}) - 1)
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
