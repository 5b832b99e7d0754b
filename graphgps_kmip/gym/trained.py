"""Finished runs as models: `load_model`, and `trained` with the data of the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import near_misses
from graphgps_kmip.data import DatasetInfo, GraphDataset
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_loading import enter_settings, read_settings
from graphgps_kmip.gym.experiment import assemble
from graphgps_kmip.gym.network_building import build_model
from graphgps_kmip.gym.planned_runs import Run, configured, quiet, unchanged_config
from graphgps_kmip.results.run_folder import best_checkpoint_file, best_or_newest
from graphgps_kmip.results.run_record import config_file, examine_record, is_finished
from graphgps_kmip.train import read_record
from graphgps_kmip.train.checkpoint import load_model_state, read_checkpoint


class Trained(NamedTuple):
    """A finished run: model (in eval mode, on the CPU), all graphs, and facts for those who read results."""

    model: nn.Module
    dataset: GraphDataset
    info: DatasetInfo
    facts: dict[str, Any]


@contextmanager
def trained(run_dir: Path) -> Iterator[Trained]:
    """Load a finished run; ``cfg`` is that of the run meanwhile. Errors are those of `load_model`."""
    record, path, content = open_run(run_dir)
    with configured(Run(run_dir.name, cfg.seed, cfg.dataset.split_index)):
        parts = assemble()
        load_model_state(parts.model, content["model_state"], path)
        facts = {
            "run": str(run_dir),
            "dataset": cfg.dataset.name,
            "sample": cfg.dataset.sample,
            "checkpoint": path.name,
            "epoch": content["epoch"],
            **{key: record.get(key, "?") for key in ("config_hash", "code_version")},
        }
        yield Trained(parts.model.eval(), parts.dataset, parts.info, facts)


def load_model(run_dir: str | Path) -> nn.Module:
    """Return the model of a finished run with the parameters of its best epoch, in eval mode, on the CPU.

    It needs no data. ``load_model(folder)(batch)`` returns predictions and labels, see `batch_of`.

    Args:
        run_dir (str or Path): Folder of the run, such as ``results/digits-kmip/0``.

    Raises:
        ConfigError: the folder holds no finished run, or the run kept no checkpoint.
        CheckpointError: the checkpoint is damaged or does not fit.
    """
    with unchanged_config():
        _, path, content = open_run(Path(run_dir))
        model = build_model(cfg)  # its file has the facts of the data and the chosen width
        load_model_state(model, content["model_state"], path)
    return model.eval()


def open_run(run_dir: Path) -> tuple[dict[str, Any], Path, dict[str, Any]]:
    """Enter the settings of a finished run into ``cfg``; return its record, and path and content of a checkpoint."""
    record = read_record(run_dir) or {}
    if not is_finished(record):
        beside = [*run_dir.glob("*/record.json"), *run_dir.parent.parent.glob("*/*/record.json")]
        folders = {file.parent for file in beside if is_finished(examine_record(file.parent)[0])}
        near = near_misses(str(run_dir), map(str, folders))
        raise ConfigError(f"{run_dir}: no finished run is there, give a folder such as results/digits-kmip/0.{near}")
    path = best_or_newest(run_dir)
    if path is None:
        raise ConfigError(
            f"{run_dir}: no checkpoint is left of this run, train it again with train.enable_ckpt True and "
            "train.ckpt_best True (and main.py --overwrite)"
        )
    if path != best_checkpoint_file(run_dir):
        hint = "of a later epoch; train.ckpt_best True keeps the best"
        logging.warning("%s: there is no best.ckpt, taken is %s, %s", run_dir, path.name, hint)
    content, file = read_checkpoint(path, record.get("config_hash", "")), config_file(run_dir, record)
    settings = [row for row in read_settings(file) if row[0].split(".")[0] not in ("run_dir", "pretrained")]
    with quiet():  # what the config says of itself is in the log of the run
        enter_settings(cfg, settings, file)  # no YAML may name the first, and the second is in the checkpoint
    return record, path, content
