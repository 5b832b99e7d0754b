"""Train modes (``train.mode``) by their public names: training, evaluation, attention weights, leaderboard."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.running.attention_weights import save_weights
from graphgps_kmip.gym.running.task import current_task
from graphgps_kmip.gym.running.train_modes import current_settings, current_writers, custom
from graphgps_kmip.registry import entries, register
from graphgps_kmip.results.run_folder import SPLITS, writing
from graphgps_kmip.train import replace_file
from graphgps_kmip.train.evaluation import evaluate, predict

LEADERBOARD = ("test-dev", "test-challenge")  # what val and test of PCQM4Mv2-inference are


@register("train_mode", "standard")
def standard(
    loaders: Sequence[Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric | None = None
) -> dict[str, Any]:
    """Train as custom does, in place of GraphGym's loop on Lightning."""
    logging.info("train.mode standard: GraphGym's loop on Lightning is not used, but ours, as for custom")
    return custom(loaders, model, optimizer, scheduler, fabric)


@register("train_mode", "inference-only")
def inference_only(
    loaders: Sequence[Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric
) -> dict[str, Any]:
    """Evaluate the model of pretrained.dir on all three splits, without training."""
    del optimizer, scheduler
    return _evaluated(dict(zip(SPLITS, loaders, strict=True)), model, fabric)


@register("train_mode", "log-attn-weights")
def log_attn_weights(
    loaders: Sequence[Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric
) -> dict[str, Any]:
    """Evaluate as inference-only, and save what each layer and head attends to in the first test graphs."""
    path = Path(cfg.run_dir) / "attention_weights.npz"
    if fabric.is_global_zero:  # first: that a model has none should not cost an evaluation
        count = save_weights(fabric.to_device(model), loaders[-1].dataset, path)
        logging.info("attention weights of %d test graphs: %s", count, path)
    return inference_only(loaders, model, optimizer, scheduler, fabric)


@register("train_mode", "PCQM4Mv2-inference")
def pcqm4mv2_inference(
    loaders: Sequence[Any], model: nn.Module, optimizer: Optimizer, scheduler: Any, fabric: Fabric
) -> dict[str, Any]:
    """Evaluate on the official validation molecules, and save the predictions for both tests of the leaderboard."""
    del optimizer, scheduler
    for loader, name in zip(loaders[1:], LEADERBOARD, strict=True):
        outputs = predict(model, loader, current_settings(), fabric, name)
        path = Path(cfg.run_dir) / f"y_pred_pcqm4m-v2_{name}.npz"
        _save_predictions(outputs, path)
        logging.info("predictions for %d molecules of %s: %s", len(outputs), name, path)
    return _evaluated({"train": loaders[0]}, model, fabric)


TRAINING = ("custom", "standard")


def check_mode(processes: int = 1) -> None:
    """Refuse a mode that cannot do its work with the settings at hand.

    Raises:
        ConfigError: there are no trained parameters, the data is not the leaderboard's, or there are several processes.
    """
    mode = cfg.train.mode
    if mode not in entries("train_mode") or mode in TRAINING:
        return
    if not cfg.pretrained.dir:
        raise ConfigError(f"train.mode {mode} does not train: name the run whose parameters it takes, pretrained.dir")
    if cfg.pretrained.reset_prediction_head:
        logging.warning(
            "train.mode %s with a new prediction head: its outputs mean nothing; set pretrained.reset_prediction_head "
            "False",
            mode,
        )
    if mode == "PCQM4Mv2-inference" and cfg.dataset.name != mode:
        raise ConfigError(f"train.mode {mode} predicts the data set dataset.name {mode}, not {cfg.dataset.name}")
    if mode == "PCQM4Mv2-inference" and processes > 1:
        raise ConfigError(f"train.mode {mode} writes its predictions in order, in one process: set devices 1")


def _evaluated(loaders: Mapping[str, Any], model: nn.Module, fabric: Fabric) -> dict[str, Any]:
    writers = current_writers() if fabric.is_global_zero else ()
    return evaluate(model, loaders, current_task(), current_settings(), Path(cfg.run_dir), fabric, writers)


def _save_predictions(outputs: Tensor, path: Path) -> None:
    """Write ogb's form of a submission: ``y_pred`` (graphs,) in float32."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, y_pred=outputs.squeeze(-1).numpy().astype(np.float32))
    with writing(path):
        replace_file(path, buffer.getvalue())
