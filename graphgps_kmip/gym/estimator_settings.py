"""Estimator of a sparse network: its YAML as ``cfg``, and the hash of its settings in that of the sparse network."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data.score_file import read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_hash import config_hash
from graphgps_kmip.gym.config_loading import load_config, parse_overrides
from graphgps_kmip.gym.pretrained import adopt_settings
from graphgps_kmip.gym.sparse_settings import check_estimator, is_sparse, layer_degrees
from graphgps_kmip.results.run_folder import scores_file

# What the command line says of these holds for both stages: the data, the place, the machine, and how a run goes on.
SHARED = frozenset(
    """out_dir accelerator devices num_threads num_workers print dataset.dir dataset.sample dataset.format dataset.name
    dataset.split dataset.split_mode dataset.split_seed dataset.split_dir train.precision train.auto_resume
    train.ckpt_period""".split()
)


def shared_words(words: Sequence[str]) -> list[str]:
    """Return the keys and values of a command line that reach the estimator, too.

    On samples the number of epochs is one of them: two show that both stages run.
    """
    pairs = list(parse_overrides(list(words)))
    sample = dict(pairs).get("dataset.sample") is True
    shared = SHARED | {"optim.max_epoch"} if sample else SHARED
    return [word for key, value in pairs if key in shared for word in (key, json.dumps(value))]


@contextmanager
def estimator_config(words: Sequence[str], log: bool = True) -> Iterator[Path]:
    """Let ``cfg`` be the config of the estimator ``spexphormer.estimator``, and put it back afterwards.

    Args:
        words: the command line's keys and values for the sparse network; those of `SHARED` count.
        log: what its config says of itself, which once is enough.

    Yields:
        The estimator's YAML.

    Raises:
        ConfigError: there is no such file, or its network cannot serve the sparse one.
    """
    file = Path(cfg.spexphormer.estimator)
    if not file.is_file():
        raise ConfigError(
            f"spexphormer.estimator: there is no file {file}: name the YAML of the estimator, from the folder of this "
            "config, or its scores in spexphormer.scores"
        )
    sparse = cfg.clone()
    try:
        with nullcontext() if log else quiet():
            load_config(cfg, file, shared_words(words))
            adopt_settings()
        for key in ("accelerator", "devices"):  # one process, or one group of them, trains both
            cfg[key] = sparse[key]
        check_estimator(cfg, sparse, str(file))
        yield file
    finally:
        cfg.defrost()
        cfg.clear()
        cfg.update(sparse)


def adopt_estimator(words: Sequence[str]) -> None:
    """Enter the hash of the estimator's settings into ``cfg``, which must be open; nothing where no scores are read.

    Where ``spexphormer.scores`` alone is given, the scores say of which settings and seed they are.

    Args:
        words: the command line's keys and values.

    Raises:
        ConfigError: neither scores nor an estimator is named, they are missing, or one of the settings does not fit.
        ResultsError: the scores are damaged.
    """
    if not is_sparse(cfg):
        return
    layer_degrees(cfg)
    if not (cfg.spexphormer.estimator or cfg.spexphormer.scores):
        raise ConfigError(
            "spexphormer.estimator: gt.layer_type Spexphormer draws edges by the scores of an estimator, and none is "
            "named: give its YAML, or its scores in spexphormer.scores"
        )
    if cfg.spexphormer.estimator:
        with estimator_config(words):
            settings = config_hash(cfg, of_run=False)
        cfg.spexphormer.estimator_hash = settings
        return
    splits = cfg.run_multiple_splits
    facts = read_scores(given_scores(str(splits[0] if splits else cfg.spexphormer.estimator_seed))).facts
    cfg.spexphormer.estimator_hash, cfg.spexphormer.estimator_seed = facts["settings"], facts["seed"]


def given_scores(folder: str) -> Path:
    """Return the file that ``spexphormer.scores`` names: itself, that of a run folder, or that in a results folder.

    Args:
        folder: name of the run in a results folder.

    Raises:
        ConfigError: there is none.
    """
    given = Path(cfg.spexphormer.scores)
    places = [given, scores_file(given), scores_file(given / folder)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise ConfigError(
            f"spexphormer.scores: there is no file {' or '.join(map(str, places))}: name the scores.pt of an "
            "estimator's run, or leave the key out and name its YAML in spexphormer.estimator"
        )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Log errors only."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
