"""Low-width score estimation (two stages): which config is an estimator, which a sparse network, and its loaders.

An estimator writes the scores of the edges of its attention; a sparse network reads edges drawn by these scores.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.data import Data
from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.node_loader import FULL_BATCH
from graphgps_kmip.data.score_file import check_scores, read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.registry import named
from graphgps_kmip.results.run_folder import SPLITS

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SPARSE, ESTIMATOR = "Spexphormer", "ScoreEstimator"  # values of gt.layer_type


def is_sparse(config: CfgNode) -> bool:
    """Return whether a config is of a sparse network, which reads sampled edges by layer."""
    return _is_network(config) and config.gt.layer_type == SPARSE


def is_estimator(config: CfgNode) -> bool:
    """Return whether a config is of a score estimator, whose run writes the scores of its edges."""
    spec = named("attention").get(config.gt.layer_type)
    return _is_network(config) and spec is not None and spec.name == ESTIMATOR


def _is_network(config: CfgNode) -> bool:
    spec = named("network").get(config.model.type)
    return spec is not None and spec.name == "Spexphormer"


def layer_degrees(config: CfgNode) -> list[int]:
    """Return the edges into a node that each layer of a sparse network reads, from the first layer to the last."""
    degrees, layers = list(config.spexphormer.degree), config.gt.layers
    if len(degrees) not in (1, layers):
        raise ConfigError(
            f"spexphormer.degree: {degrees} has {len(degrees)} entries for gt.layers {layers}: give one for all "
            "layers, or one for each, the first layer's first"
        )
    return degrees * layers if len(degrees) == 1 else degrees


def check_estimator(config: CfgNode, sparse: CfgNode, file: str) -> None:
    """Refuse an estimator, read from ``file``, whose scores could not serve a sparse network, before it is trained."""
    place = f"spexphormer.estimator: {file}"
    check_keeps_best(config, f"{file}: ")
    if config.gt.layers < sparse.gt.layers:
        raise ConfigError(
            f"{place} has gt.layers {config.gt.layers}, the sparse network {sparse.gt.layers}: each layer draws by the "
            "scores of the estimator's: give the estimator as many layers or more"
        )
    for key in ("format", "name", "sample"):
        if config.dataset[key] != sparse.dataset[key]:
            raise ConfigError(
                f"{place} has dataset.{key} {config.dataset[key]}, the sparse network {sparse.dataset[key]}: give "
                "both the same data"
            )


def check_keeps_best(config: CfgNode, place: str = "") -> None:
    """Refuse an estimator that keeps no checkpoint of its best epoch; ``place`` begins the message of the error."""
    for key in ("enable_ckpt", "ckpt_best"):
        if not config.train[key]:
            raise ConfigError(
                f"{place}train.{key} is False: the scores of an estimator are those of its best epoch, which only "
                f"its checkpoint has: set train.{key} True"
            )


def the_graph(dataset: GraphDataset, level: str) -> Data:
    """Return the one graph whose nodes are classified; refuse other data."""
    if level != "node" or len(dataset) != 1:
        many = f"{len(dataset):,} graphs, level {level}"
        raise ConfigError(
            f"dataset.name: scores and samples of edges are of one graph whose nodes are classified, and "
            f"{cfg.dataset.format} {cfg.dataset.name} is {many}: take another data set, or another gt.layer_type"
        )
    return dataset.graphs[0]


def sparse_loaders(dataset: GraphDataset, level: str, fabric: Fabric) -> list[LayerLoader]:
    """Return the loaders of training, validation and test; scores of other data, split or settings are refused."""
    graph, options, path = the_graph(dataset, level), cfg.spexphormer, Path(cfg.spexphormer.scores)
    for key in ("train", "val"):
        if cfg[key].sampler != FULL_BATCH:
            raise ConfigError(
                f"{key}.sampler: gt.layer_type Spexphormer has batches of its own, train.batch_size nodes with the "
                f"edges of spexphormer.sampler, got {cfg[key].sampler}: set {FULL_BATCH}"
            )
    scores = read_scores(path)
    check_scores(scores, path, layers=cfg.gt.layers, settings=options.estimator_hash or None, **graph_facts(graph))
    sampling = LayerSampling(
        degrees=tuple(layer_degrees(cfg)),
        sampler=options.sampler,
        batch_size=cfg.train.batch_size,
        resampling_epochs=options.resampling_epochs,
        repeat=options.repeat_missing,
    )
    return [
        LayerLoader(
            graph,
            split,
            scores,
            replace(sampling, num_draws=1 if split == "train" else options.eval_draws),
            cfg.seed,
            shuffle=cfg.train.shuffle and split == "train",
            num_workers=cfg.num_workers,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        for split in SPLITS
    ]
