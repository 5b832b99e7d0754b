"""Estimator of a sparse network: it is trained first, in a run folder of its own, where its scores are missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.file_lock import locked
from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.data_loading import configured_graph
from graphgps_kmip.gym.planned_runs import (
    Run,
    configured,
    estimator_config,
    find_scores,
    quiet,
    set_out_dir,
    shared_arguments,
    unchanged_config,
)
from graphgps_kmip.gym.sparse_loading import the_graph
from graphgps_kmip.results.run_folder import scores_file
from graphgps_kmip.results.run_record import is_finished, read_record
from graphgps_kmip.train.distributed import on_rank_zero

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def make_scores(
    run: Run, argv: Sequence[str], fabric: Fabric, train: Callable[..., object], overwrite: bool = False
) -> str:
    """Return where the scores of a sparse network's run are; train the estimator by ``train`` if they are missing.

    An estimator of another split, of other data or, without ``overwrite``, of other settings is refused.
    """
    first = _estimator_run(run)
    if cfg.spexphormer.scores:
        return str(find_scores(first.name))
    with estimator_config(argv, log=False) as file:
        path = scores_file(set_out_dir(file) / first.name)
        with configured(first):
            key, precision = config_hash(cfg), cfg.train.precision
    with ExitStack() as stack:
        lock = path.parent.with_name(f".{path.parent.name}.scores.lock")
        on_rank_zero(fabric, lambda: stack.enter_context(locked(lock, f"the estimator of {path.parent}")))
        if on_rank_zero(fabric, lambda: _has_scores(path, key, file, overwrite)):
            return str(path)
        logging.info("%s is missing: its estimator, %s, is trained first", path, file)
        on_rank_zero(fabric, lambda: _check_data(first, argv))  # hours of training must not end in a refusal
        arguments = ["accelerator", cfg.accelerator, "devices", str(cfg.devices), "seed", str(first.seed)]
        arguments += ["run_multiple_splits", f"[{first.split_index}]" if cfg.run_multiple_splits else "[]"]
        arguments += ["dataset.split_index", str(first.split_index)]
        shared = fabric if precision == cfg.train.precision else None
        with unchanged_config():
            train(file, [*shared_arguments(argv), *arguments], fabric=shared, keep_scores=True)
    return str(path)


def scores_line(run: Run, argv: Sequence[str]) -> str:
    """Return where the scores of a run are, or which YAML is trained first, for a dry run."""
    first = _estimator_run(run)
    if cfg.spexphormer.scores:
        return f"{find_scores(first.name)}: there"
    with estimator_config(argv, log=False) as file:
        path = scores_file(set_out_dir(file) / first.name)
    return f"{path}: {'there' if path.is_file() else f'missing, {file} is trained first'}"


def _estimator_run(run: Run) -> Run:
    """Return the run of the estimator: one for all seeds of the sparse network, or one for each of its splits."""
    seed = cfg.spexphormer.estimator_seed
    return Run(run.name if cfg.run_multiple_splits else str(seed), seed, run.split_index)


def _has_scores(path: Path, key: str, file: Path, overwrite: bool) -> bool:
    record = read_record(path.parent) or {}
    same = record.get("config_hash") == key
    if is_finished(record) and not same and not overwrite:
        raise ConfigError(
            f"spexphormer.estimator: {path.parent} holds a finished run of other settings than {file} has now: "
            "--overwrite trains it again and keeps the old folder aside, name_tag or out_dir name another place"
        )
    return is_finished(record) and same and path.is_file()


def _check_data(first: Run, argv: Sequence[str]) -> None:
    with quiet():  # what is said of the data belongs to the runs
        sparse = graph_facts(the_graph(*configured_graph()))
        with estimator_config(argv) as file, configured(first):
            estimator = graph_facts(the_graph(*configured_graph()))
    if sparse["data"] != estimator["data"]:
        raise ConfigError(
            f"spexphormer.estimator: {file} makes other edges, features or labels of the data than this config: give "
            "both the same dataset and prep keys"
        )
    if sparse["split"] != estimator["split"]:
        raise ConfigError(
            f"spexphormer.estimator: {file} trains on another split than this run, so labels of its validation or test "
            "nodes would be in the scores: give both the same dataset.split_mode and dataset.split; of split_mode "
            "random, set dataset.split_seed 0 in both"
        )
