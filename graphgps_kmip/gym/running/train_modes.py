"""Train mode ``custom``: our training loop, with settings and writers from ``cfg``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric
from torch import nn
from torch.optim import Optimizer
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.config.config_hash import config_hash
from graphgps_kmip.gym.config.config_loading import flatten
from graphgps_kmip.gym.running.task import current_task
from graphgps_kmip.registry import register
from graphgps_kmip.results.run_folder import CONFIG
from graphgps_kmip.train import MissingWriter, TensorBoardWriter, TrainSettings, WandbWriter, Writer, train


@register("train_mode", "custom")
def custom(
    loaders: Sequence[Any],
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: Any,
    fabric: Fabric | None = None,
) -> dict[str, Any]:
    """Train as the config says, on the data that the loaders give, and return the final record."""
    return train(
        model,
        list(loaders),
        optimizer,
        scheduler,
        current_task(),
        current_settings(),
        Path(cfg.run_dir),
        fabric=fabric,
        writers=current_writers() if fabric is None or fabric.is_global_zero else (),
    )


def current_settings() -> TrainSettings:
    """Return the training settings of the config."""
    return TrainSettings(
        max_epoch=cfg.optim.max_epoch,
        eval_period=cfg.train.eval_period,
        eval_test=cfg.train.eval_test,
        batch_accumulation=cfg.optim.batch_accumulation,
        accumulation_mean=cfg.optim.accumulation_mean,
        clip_grad_norm=cfg.optim.clip_grad_norm_value if cfg.optim.clip_grad_norm else None,
        enable_ckpt=cfg.train.enable_ckpt,
        ckpt_period=cfg.train.ckpt_period,
        ckpt_best=cfg.train.ckpt_best,
        ckpt_clean=cfg.train.ckpt_clean,
        auto_resume=cfg.train.auto_resume,
        epoch_resume=cfg.train.epoch_resume,
        precision=cfg.train.precision,
        seed=cfg.seed,
        config_hash=config_hash(cfg),
        notes=_notes(),
        name=f"{Path(cfg.out_dir).name}/{Path(cfg.run_dir).name}",
    )


def _notes() -> dict[str, str | bool]:
    own_name = {"config_file": cfg.cfg_dest} if cfg.cfg_dest != CONFIG else {}
    return {"experiment": config_hash(cfg, of_run=False), "sample": cfg.dataset.sample, **own_name}


def current_writers() -> list[Writer]:
    """Return TensorBoard and Weights & Biases, as far as they are switched on and installed.

    Nearly all public files switch one on; a run without it loses nothing, so that is no reason to stop.
    """
    writers: list[Writer] = []
    for wanted, make in ((cfg.tensorboard_each_run, _tensorboard), (cfg.wandb.use, _wandb)):
        try:
            writers += [make()] if wanted else []
        except MissingWriter as error:
            logging.warning("%s; the run goes on without it, its statistics are in stats.json", error)
    return writers


def _tensorboard() -> Writer:
    return TensorBoardWriter(Path(cfg.run_dir) / "tensorboard")


def _wandb() -> Writer:
    run = f"{Path(cfg.out_dir).name}-{Path(cfg.run_dir).name}"
    key = f"{run}-{config_hash(cfg)}"  # the same for a run and its resumption
    return WandbWriter(cfg.wandb.entity, cfg.wandb.project, cfg.wandb.name or run, dict(flatten(cfg)), key)
