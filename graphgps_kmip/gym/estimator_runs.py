"""Estimator of a sparse network: it is trained first, in a run folder of its own, where its scores are missing.

One command trains both stages, ``python main.py --cfg configs/LowWidth/minesweeper.yaml``. The estimator's run is the
one that ``python main.py --cfg configs/LowWidth/minesweeper-estimator.yaml seed <spexphormer.estimator_seed>`` would
make: it serves every seed of the sparse network, and each split of ``run_multiple_splits`` has its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import Timeout
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.file_lock import held
from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.data_loading import configured_graph
from graphgps_kmip.gym.estimator_settings import estimator_config, given_scores, quiet
from graphgps_kmip.gym.experiment import is_done, launch
from graphgps_kmip.gym.experiment_runs import train_runs
from graphgps_kmip.gym.planned_runs import Run, configured, set_out_dir
from graphgps_kmip.gym.score_saving import the_graph
from graphgps_kmip.results.run_folder import scores_file, writing
from graphgps_kmip.results.run_record import is_finished, read_record
from graphgps_kmip.train import on_rank_zero

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def with_scores(run: Run, words: Sequence[str], fabric: Fabric, overwrite: bool = False) -> Run:
    """Return a run of a sparse network that knows where its scores are; train the estimator if they are missing.

    Args:
        run: of the sparse network, whose config ``cfg`` is.
        words: the command line's keys and values.
        fabric: launched.
        overwrite: train an estimator anew whose folder holds a run of other settings; else it is refused.

    Raises:
        ConfigError: the scores that ``spexphormer.scores`` names are missing; or the estimator is of another split or
            other data, or its folder holds another run.
    """
    if cfg.spexphormer.scores:
        return replace(run, scores=str(given_scores(_folder(run))))
    if not overwrite and on_rank_zero(fabric, lambda: is_done(run)):
        return run
    first = _first(run)
    with _estimator(words) as file, configured(first):
        path = scores_file(Path(cfg.run_dir))
    with _alone(fabric, path.parent):
        if not on_rank_zero(fabric, lambda: _are_there(first, words, overwrite)):
            logging.info("%s is missing: its estimator, %s, is trained first", path, file)
            _train(run, first, words, fabric)
    return replace(run, scores=str(path))


def scores_line(run: Run, words: Sequence[str]) -> str:
    """Return where the scores of a run are, or which YAML is trained first, for a dry run."""
    if cfg.spexphormer.scores:
        return f"{given_scores(_folder(run))}: there"
    first = _first(run)
    with _estimator(words) as file, configured(first):
        path = scores_file(Path(cfg.run_dir))
    return f"{path}: {'there' if path.is_file() else f'missing, {file} is trained first'}"


def _first(run: Run) -> Run:
    """Return the estimator's run for a run of the sparse network, whose config ``cfg`` is."""
    return Run(_folder(run), cfg.spexphormer.estimator_seed, run.split_index)


def _folder(run: Run) -> str:
    """Return the name of the folder of the estimator's run: the seed, or the split of ``run_multiple_splits``."""
    return run.name if cfg.run_multiple_splits else str(cfg.spexphormer.estimator_seed)


@contextmanager
def _estimator(words: Sequence[str]) -> Iterator[Path]:
    """Let ``cfg`` be the config of the estimator, with the folder of its results."""
    with estimator_config(words, log=False) as file:
        set_out_dir(file)
        yield file


def _are_there(first: Run, words: Sequence[str], overwrite: bool) -> bool:
    """Return whether the estimator's run is finished and has scores.

    Raises:
        ConfigError: its folder holds a finished run of other settings, which is not to be replaced.
    """
    with _estimator(words) as file, configured(first):
        folder, key = Path(cfg.run_dir), config_hash(cfg)
    record = read_record(folder) or {}
    if is_finished(record) and record.get("config_hash") != key and not overwrite:
        raise ConfigError(
            f"spexphormer.estimator: {folder} holds a finished run of other settings than {file} has now: "
            "--overwrite trains it again and keeps the old folder aside, name_tag or out_dir name another place"
        )
    return is_finished(record) and record.get("config_hash") == key and scores_file(folder).is_file()


def _train(run: Run, first: Run, words: Sequence[str], fabric: Fabric) -> None:
    """Train the estimator, after a look at the data of both stages: hours of training must not end in a refusal."""
    precision, facts = cfg.train.precision, on_rank_zero(fabric, lambda: _facts(run))
    with _estimator(words) as file:
        on_rank_zero(fabric, lambda: _check_data(facts, _facts(first), file))
        train_runs([first], _fitting(fabric, precision, file), keep_scores=True)


def _facts(run: Run) -> dict[str, str | int]:
    with configured(run), quiet():  # what is said of the data belongs to the runs
        return graph_facts(the_graph(*configured_graph()))


def _check_data(sparse: dict[str, str | int], estimator: dict[str, str | int], file: Path) -> None:
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


def _fitting(fabric: Fabric, precision: str, file: Path) -> Fabric:
    """Return a Fabric of the estimator's precision.

    Raises:
        ConfigError: it differs from that of the sparse network, and there are several processes.
    """
    if cfg.train.precision == precision:
        return fabric
    if fabric.world_size > 1:
        raise ConfigError(
            f"train.precision: {file} has {cfg.train.precision}, the sparse network {precision}: with several "
            "processes give both the same"
        )
    return launch()


@contextmanager
def _alone(fabric: Fabric, run_dir: Path) -> Iterator[None]:
    """Let one process at a time look for scores and train: sparse networks of several seeds may start together."""
    with ExitStack() as stack:
        on_rank_zero(fabric, lambda: _hold(stack, run_dir))
        yield


def _hold(stack: ExitStack, run_dir: Path) -> None:
    lock = run_dir.with_name(f".{run_dir.name}.scores.lock")
    with writing(lock):
        try:
            stack.enter_context(held(lock, wait=0.2))
        except Timeout:
            logging.info("%s: waiting for another process that trains this estimator", run_dir)
            stack.enter_context(held(lock))
