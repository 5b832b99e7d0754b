"""Loaders as the config says: batches of graphs, or one graph whole, in batches of its nodes, or over processes."""

from __future__ import annotations

import logging

from lightning_fabric import Fabric
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.data import GraphDataset, GraphLoader, NodeLoader, Sampling, make_loaders
from graphgps_kmip.data.loaders import with_node_budget
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.building.network_building import current_plan
from graphgps_kmip.networks.branches import branch_rows


def current_loaders(dataset: GraphDataset, level: str, fabric: Fabric) -> list[GraphLoader | NodeLoader]:
    """Return the loaders of training, validation and test for this process.

    Raises:
        ValueError: the config asks for what these data or this model cannot do.
    """
    train, *evaluation = make_loaders(
        dataset,
        level,
        cfg.train.batch_size,
        seed=cfg.seed,
        num_workers=cfg.num_workers,
        shuffle=cfg.train.shuffle,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        sampling=current_sampling(),
        shard=_is_divided(fabric.world_size),
    )
    return [_budgeted(train), *evaluation]


def _budgeted(train: GraphLoader | NodeLoader) -> GraphLoader | NodeLoader:
    """Fill the batches of training up to a number of nodes, where the config says so."""
    budget = cfg.train.max_nodes
    if budget == 0:
        return train
    if not isinstance(train, GraphLoader) or len(train.dataset) == 1:
        raise ConfigError(
            f"train.max_nodes: {budget} fills batches of whole graphs, and here is one graph: set it to 0"
        )
    return with_node_budget(train, budget)


def current_sampling() -> Sampling:
    """Return how the config divides one graph into batches."""
    return Sampling(
        cfg.train.sampler, cfg.val.sampler, cfg.train.batch_size, tuple(cfg.train.neighbor_sizes), cfg.train.train_parts
    )


def _is_divided(world_size: int) -> bool:
    """Say whether the nodes of the one graph are to be divided over the processes."""
    if not cfg.gt.kmip.shard:
        return False
    if world_size == 1:
        logging.info("gt.kmip.shard: there is one process, which has all nodes (torchrun, or devices, starts several)")
        return False
    attentions = [one.name for one in branch_rows(current_plan()) if one.spec.kind == "attention"]
    if cfg.model.type != "GPSModel" or not set(attentions) <= {"kMIP"}:
        raise ConfigError(
            f"gt.kmip.shard: only GPSModel with kMIP can reach the nodes of other processes, not {cfg.model.type} with "
            f"gt.layer_type {cfg.gt.layer_type}: set it to False"
        )
    return True
