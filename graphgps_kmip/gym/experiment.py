"""The whole experiment: config, planned runs, data set, model, loaders, optimizer, training, pictures, summary."""

from __future__ import annotations

import argparse
import logging
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn
from torch_geometric import seed_everything
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.logger import set_printing
from torch_geometric.graphgym.register import network_dict, optimizer_dict, scheduler_dict, train_dict
from yacs.config import CfgNode

from graphgps_kmip.common.atomic_write import replace_file
from graphgps_kmip.common.environment import find_config, restart_peak_memory
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.signals import ScreenLog
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.key_translation import refuse
from graphgps_kmip.data import DatasetInfo, GraphDataset, find, published_rows
from graphgps_kmip.errors import ConfigError, UserError, one_line
from graphgps_kmip.gym.attention_saving import save_attention, save_scores
from graphgps_kmip.gym.component_list import listing
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config
from graphgps_kmip.gym.data_loading import (
    current_loaders,
    dataset_info,
    load_configured,
    missing_data,
    show_data,
    stand_in,
)
from graphgps_kmip.gym.estimator_runs import make_scores, scores_line
from graphgps_kmip.gym.network_building import build_model, make_plan, with_facts, with_width
from graphgps_kmip.gym.parameter_count import describe
from graphgps_kmip.gym.planned_runs import configured, load_settings, planned_runs, set_out_dir
from graphgps_kmip.gym.pretrained import load_parameters
from graphgps_kmip.gym.sparse_loading import check_keeps_best, is_estimator, is_sparse, the_graph
from graphgps_kmip.gym.train_modes import (
    RESUMED,
    TRAINING,
    check_mode,
    current_optimizer,
    current_scheduler,
    current_settings,
    current_task,
    train_mode,
)
from graphgps_kmip.networks.gps_networks import refuse_unread_recipe, warn_of_unread_settings
from graphgps_kmip.report.aggregate import aggregate
from graphgps_kmip.results.run_folder import scores_file, writing
from graphgps_kmip.results.run_record import is_finished, read_record
from graphgps_kmip.train.distributed import make_fabric, on_rank_zero
from graphgps_kmip.train.run_recording import locked, prepare_run_dir

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def carry_out(args: argparse.Namespace) -> None:
    """Do what the command line asks for: list components, show a data set, dry run, or train."""
    file = args.cfg_file and find_config(args.cfg_file)
    if args.list is not None:
        if file:
            load_config(cfg, file, [])  # its custom modules register components
        print(listing([args.list, *args.opts]))
    elif args.data:
        load_config(cfg, file, args.opts)  # its custom modules register data sets
        print(show_data(args.data))
    elif args.predict:
        from graphgps_kmip.gym.trained import write_predictions  # it reads this module

        print(write_predictions(args.predict, args.data_folder, args.out))
    elif args.dry_run:
        print(dry_run(file, args.opts, args.repeat, args.verbose))
    else:
        fabric = run_experiment(file, args.opts, args.repeat, args.overwrite)
        if args.mark_done and fabric.is_global_zero:
            file.rename(f"{file}_done")


def run_experiment(
    file: Path,
    argv: Sequence[str],
    repeat: int = 1,
    overwrite: bool = False,
    fabric: Fabric | None = None,
    keep_scores: bool = False,
) -> Fabric:
    """Train every run of a YAML file, draw its pictures, write the summary of all, and return the Fabric.

    Args:
        file: the YAML.
        argv: the command line's keys and values.
        repeat: number of seeds.
        overwrite: repeat finished runs; their folders are moved aside, never deleted.
        fabric: launched; decides device, precision and processes. None: as the config says.
        keep_scores: write the scores of the attention, as a score estimator does in any case.
    """
    load_settings(file, argv)
    runs = planned_runs(repeat)
    fabric = fabric or launch(overwrite)
    out_dir, experiment = set_out_dir(file), config_hash(cfg, per_run=False)
    summary = (out_dir, cfg.metric_best, cfg.metric_agg, experiment)
    for number, run in enumerate(runs, start=1):
        parts = loaders = optimizer = scheduler = train = None  # or the run before would keep its memory
        with configured(run), ExitStack() as stack:
            run_dir, key = Path(cfg.run_dir), config_hash(cfg)
            if not overwrite and on_rank_zero(fabric, partial(_is_finished, run_dir, key)):
                logging.warning("%s is finished and is not repeated; --overwrite starts anew", run_dir)
                if _writes_scores(keep_scores):
                    on_rank_zero(fabric, partial(_complete_scores, run_dir, keep_scores))
                continue
            check_mode(fabric.world_size)
            if is_sparse(cfg):
                cfg.spexphormer.scores = make_scores(run, argv, fabric, run_experiment, overwrite)
            restart_peak_memory()  # of another run in this process
            parts = assemble()  # data set and model; a mistake in them must not touch the folder of earlier results
            if writes_scores := _writes_scores(keep_scores):
                check_keeps_best(cfg)
                the_graph(parts.dataset, parts.info.level)  # refuses several
            loaders = current_loaders(parts.dataset, parts.info.level, fabric)
            optimizer = current_optimizer(parts.model)
            scheduler = current_scheduler(optimizer)
            on_rank_zero(fabric, partial(stack.enter_context, locked(run_dir)))
            resume = cfg.train.auto_resume or cfg.train.mode in RESUMED
            if on_rank_zero(fabric, partial(prepare_run_dir, run_dir, key, overwrite, resume)) == "finished":
                continue  # by the process that had the lock
            on_rank_zero(fabric, partial(_write_config, run_dir / cfg.cfg_dest, parts.config))
            log_to_run_dir(fabric)
            train = train_mode(parts.config)
            record = train(loaders, parts.model, optimizer, scheduler, fabric)
            if fabric.is_global_zero and not is_sparse(cfg):  # whose model takes no whole graph
                save_attention(parts.model, parts.dataset, run_dir / "attention.npz")
            if writes_scores:
                on_rank_zero(fabric, partial(save_scores, parts.model, parts.dataset, parts.info.level, run_dir))
        if fabric.is_global_zero:
            logging.info("run %d of %d is done: %s", number, len(runs), run_dir)
            if record is not None:  # as modes of another package return
                draw_pictures(run_dir)
    if fabric.is_global_zero:
        unit = "fold" if cfg.dataset.split_mode.startswith("cv-") else "split"
        aggregate(*summary, unit=unit if cfg.run_multiple_splits else "")
    return fabric


class Parts(NamedTuple):
    """Data, its facts, the frozen config with these facts and the searched width, and network of a run."""

    dataset: GraphDataset
    info: DatasetInfo
    config: CfgNode
    model: nn.Module


def assemble() -> Parts:
    """Freeze ``cfg``, load the data, build the model, with the parameters of ``pretrained.dir`` if there is one."""
    cfg.freeze()  # nothing below may write into it: facts of the data travel as values
    refuse(dict(flatten(cfg)))
    # OMP_NUM_THREADS ("4", or "4,2" by levels): the share of a run that is one of several on this machine
    max_threads = os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1)
    torch.set_num_threads(min(cfg.num_threads, int(max_threads.split(",")[0])))
    seed_everything(cfg.seed)
    dataset, facts = load_configured()
    info = dataset_info(dataset)
    for table, name, key in (
        (network_dict, cfg.model.type, "model.type"),
        (optimizer_dict, cfg.optim.optimizer, "optim.optimizer"),
        (scheduler_dict, cfg.optim.scheduler, "optim.scheduler"),
        (train_dict, cfg.train.mode, "train.mode"),
    ):
        look_up(table, name, key)
    config = with_width(with_facts(cfg, info, facts))
    current_task(info.dim_out), current_settings()  # their mistakes, too, must show before a folder is touched
    refuse_unread_recipe(make_plan(config))
    warn_of_unread_settings(make_plan(config))
    model = build_model(config)
    load_parameters(model)
    return Parts(dataset, info, config, model)


def dry_run(file: Path, argv: Sequence[str], repeat: int = 1, verbose: bool = False) -> str:
    """Return model, parameter counts, data and cost of the first run as text; nothing is downloaded.

    With `verbose` every module and config key too.
    """
    load_settings(file, argv)
    run = planned_runs(repeat)[0]
    scores = f"\n\n--- scores\n{scores_line(run, argv)}" if is_sparse(cfg) else ""
    with configured(run):
        missing = missing_data()
        if not missing:
            parts, batches = assemble(), None
            if not is_sparse(cfg):  # whose batches need the scores
                alone = SimpleNamespace(global_rank=0, world_size=1)
                batches = len(current_loaders(parts.dataset, parts.info.level, alone)[0])
            data = parts.info.describe()
        else:
            with stand_in():
                parts = assemble()
            record = find(cfg.dataset.format, cfg.dataset.name)
            data = [*published_rows(record, parts.info), ("missing", missing)]
            sizes = record.statistics.sizes if record.statistics and len(parts.dataset) > 1 else None
            batches = sizes and math.ceil(sizes[0] / cfg.train.batch_size)
        return describe(parts.model, parts.config, data, batches, repeat, verbose) + scores


def launch(overwrite: bool = False) -> Fabric:
    """Return the launched Fabric that the config asks for: device, precision, number of processes."""
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
    if restarts and (overwrite or not cfg.train.auto_resume or cfg.train.epoch_resume >= 0):
        raise ConfigError(
            f"torchrun --max-restarts {restarts}: a restart must go on from the newest checkpoint: set "
            "train.auto_resume True, leave train.epoch_resume at -1, and leave out --overwrite"
        )
    accelerator, _, index = cfg.accelerator.partition(":")  # public files say "cuda:0"
    devices = [int(index)] if index else cfg.devices
    check_devices(accelerator, devices)
    return make_fabric(accelerator, devices, cfg.train.precision)


def check_devices(accelerator: str, devices: int | list[int]) -> None:
    """Refuse devices that this machine does not have."""
    if accelerator not in ("cuda", "gpu"):
        return
    count, here = torch.cuda.device_count(), f"{accelerator}:{devices[0]}" if isinstance(devices, list) else accelerator
    if not count:
        raise ConfigError(f"accelerator {here}: torch finds no CUDA device here: write accelerator auto, or cpu")
    if isinstance(devices, list) and devices[0] >= count:
        raise ConfigError(f"accelerator {here}: this machine has {count} CUDA devices, numbered from 0: choose one")
    if isinstance(devices, int) and devices > count:
        raise ConfigError(f"devices {devices}: this machine has {count} CUDA devices: write {count} or fewer")


def log_to_run_dir(fabric: Fabric) -> None:
    """Log to screen and ``cfg.run_dir/logging.log`` as ``cfg.print`` says; further processes show warnings only."""
    if not fabric.is_global_zero:
        logging.basicConfig(level=logging.WARNING, format=f"process {fabric.global_rank}: %(message)s", force=True)
        return
    with writing(Path(cfg.run_dir) / "logging.log", "The results so far are unchanged."):
        set_printing()
        for handler in logging.root.handlers[:]:
            if not isinstance(handler, logging.FileHandler):
                logging.root.removeHandler(handler)
                logging.root.addHandler(ScreenLog(handler.formatter))


def draw_pictures(run_dir: Path) -> None:
    """Draw the pictures of a finished run."""
    from graphgps_kmip.report.figures.attention_graphs import draw_attention  # matplotlib takes a second to import
    from graphgps_kmip.report.learning_curves import draw_curves

    arrays = run_dir / "attention.npz"
    pictures = [draw_attention(arrays, run_dir / "attention.png")] if arrays.exists() else []
    pictures.append(draw_curves(run_dir, cfg.metric_best, cfg.metric_agg))
    logging.info("pictures: %s", ", ".join(path.name for path in pictures))


def _write_config(path: Path, config: CfgNode) -> None:
    with writing(path):
        replace_file(path, config.dump().encode())


def _is_finished(run_dir: Path, key: str) -> bool:
    record = read_record(run_dir)
    return is_finished(record) and record.get("config_hash") == key


def _writes_scores(keep_scores: bool) -> bool:
    return cfg.train.mode in TRAINING and (keep_scores or is_estimator(cfg))


def _complete_scores(run_dir: Path, keep_scores: bool) -> None:
    """Write the scores of a finished run where they are missing, as after an interruption."""
    if scores_file(run_dir).exists():
        return
    try:
        parts = assemble()
        save_scores(parts.model, parts.dataset, parts.info.level, run_dir)
    except UserError as error:
        if keep_scores:
            raise
        logging.warning("no scores: %s", one_line(error))  # the results are complete without them
