"""Derived settings: the config with the facts of its data (dims, class counts, widths), as a value of its own.

Builders read a frozen copy of ``cfg``, never facts that were written into it. Components of other packages read
GraphGym's ``cfg`` itself (``cfg.share.dim_in``, ``cfg.dataset.edge_dim``, ``cfg.gnn.dim_inner``) and cannot be given
anything else: `served` lets ``cfg`` have the content of the copy while one of them is built, or while a train mode of
another package runs, and no longer. What they read of these facts later, in ``forward``, they have to keep.
GraphGym's own main program builds everything from ``cfg``: for it alone, `enter` leaves facts there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch_geometric.graphgym.config import cfg
from yacs.config import CfgNode

from graphgps_kmip.data import DatasetInfo
from graphgps_kmip.gym.graphgym_registries import of_others

BUILT = ("network", "head", "node_encoder", "edge_encoder", "activation")  # kinds that `for_builders` wraps


def with_values(config: CfgNode, values: Mapping[str, Any]) -> CfgNode:
    """Return a frozen copy of a config with other values.

    Args:
        config (CfgNode): Is not changed.
        values (Mapping): Dotted key -> value; keys of ``share`` may be new.
    """
    copy = config.clone()
    _set(copy, values)
    copy.freeze()
    return copy


def with_facts(config: CfgNode, info: DatasetInfo, of_encodings: Mapping[str, int]) -> CfgNode:
    """Return a frozen copy of a config with what GraphGym and its components look for there.

    Args:
        config (CfgNode): Is not changed.
        info (DatasetInfo): Of the loaded data set.
        of_encodings (Mapping): Facts that encodings derive from the graphs: ``share.<name>`` -> value.
    """
    facts = {"share.dim_in": info.dim_in, "share.dim_out": info.dim_out, "share.num_splits": 3}
    return with_values(config, {**of_encodings, **facts, "dataset.edge_dim": info.dim_edge})


def enter(values: Mapping[str, Any]) -> None:
    """Enter facts into ``cfg``, for GraphGym's own main program: it reads them there after its call of our loader."""
    _set(cfg, values)


@contextmanager
def served(config: CfgNode) -> Iterator[None]:
    """Let ``cfg`` have the content of another config, for code of other packages that reads nothing else.

    Args:
        config (CfgNode): Frozen, so that this code cannot write into it.
    """
    if config is cfg:
        yield
        return
    before, was_frozen = dict(cfg), cfg.is_frozen()
    _replace(config, frozen=config.is_frozen())
    try:
        yield
    finally:
        _replace(before, frozen=was_frozen)


def for_builders(config: CfgNode) -> dict[str, dict[str, Any]]:
    """Return kind -> name -> component of other packages, each of which is built while `served` the config."""
    return {
        kind: {name: partial(_build_served, entry, config) for name, entry in rows.items()} if kind in BUILT else rows
        for kind, rows in of_others().items()
    }


def _build_served(entry: Callable[..., Any], config: CfgNode, *given: Any, **named: Any) -> Any:
    with served(config):
        return entry(*given, **named)


def _set(config: CfgNode, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        *groups, leaf = key.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[leaf] = value


def _replace(content: Mapping[str, Any], frozen: bool) -> None:
    """Give ``cfg`` the same groups, not copies, so that they keep their identity; these are frozen or not already."""
    dict.clear(cfg)
    dict.update(cfg, content)
    cfg.__dict__[CfgNode.IMMUTABLE] = frozen
