"""Loaders of a sparse network: edges drawn by the scores of an estimator, which must fit data, split and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import GraphDataset
from graphgps_kmip.data.dataset import graph_facts
from graphgps_kmip.data.layer_loader import LayerLoader, LayerSampling
from graphgps_kmip.data.node_loader import FULL_BATCH
from graphgps_kmip.data.score_file import check_scores, read_scores
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.score_saving import the_graph
from graphgps_kmip.gym.sparse_settings import layer_degrees
from graphgps_kmip.results.run_folder import SPLITS

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def sparse_loaders(dataset: GraphDataset, level: str, fabric: Fabric) -> list[LayerLoader]:
    """Return the loaders of training, validation and test for this process.

    Each reads the same sampled edges in an epoch, as published; with ``spexphormer.eval_draws`` above 1, validation
    and test average the predictions of as many samples.

    Args:
        dataset: one graph, whose nodes are classified.
        level: of its records, see `DatasetInfo`.
        fabric: launched.

    Raises:
        ConfigError: the data is something else, or a setting asks for other batches.
        ResultsError: the scores are damaged, or of other data, another split or other settings.
    """
    graph = the_graph(dataset, level)
    _check_batches()
    path = Path(cfg.spexphormer.scores)
    scores = read_scores(path)
    settings = cfg.spexphormer.estimator_hash or None
    check_scores(scores, path, layers=cfg.gt.layers, settings=settings, **graph_facts(graph))
    return [
        LayerLoader(
            graph,
            split,
            scores,
            _sampling(split),
            cfg.seed,
            shuffle=cfg.train.shuffle and split == "train",
            num_workers=cfg.num_workers,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        for split in SPLITS
    ]


def _sampling(split: str) -> LayerSampling:
    ours = cfg.spexphormer
    return LayerSampling(
        tuple(layer_degrees(cfg)),
        ours.sampler,
        cfg.train.batch_size,
        ours.resampling_epochs,
        1 if split == "train" else ours.eval_draws,
        ours.repeat_missing,
    )


def _check_batches() -> None:
    """Refuse settings that ask for batches of another kind, which would have no effect."""
    for key in ("train", "val"):
        if cfg[key].sampler != FULL_BATCH:
            raise ConfigError(
                f"{key}.sampler: gt.layer_type Spexphormer has batches of its own, train.batch_size nodes with the "
                f"edges of spexphormer.sampler, got {cfg[key].sampler}: set {FULL_BATCH}"
            )
    if cfg.train.max_nodes:
        raise ConfigError(
            f"train.max_nodes: {cfg.train.max_nodes} fills batches of whole graphs, and here is one graph: set it to 0"
        )
