"""Activations by name: those that public YAML files use beside GraphGym's own."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.registry import components, register

register("activation", "gelu", nn.GELU)
register("activation", "silu", nn.SiLU, aliases=("swish",))


def activation() -> Callable[[], nn.Module]:
    """Return what builds the activation ``gnn.act``."""
    return _named(cfg.gnn.act, "gnn.act")


def layer_activation() -> Callable[[], nn.Module]:
    """Return what builds the activation inside GPS layers, GatedGCN and GINE: ``gnn.layer_act``, or ``gnn.act``.

    Some public codes have a ReLU there whatever ``gnn.act`` says.
    """
    return _named(cfg.gnn.layer_act, "gnn.layer_act") if cfg.gnn.layer_act else activation()


def _named(name: str, key: str) -> Callable[[], nn.Module]:
    return look_up(components("activation") | graphgym.act_dict, name, key)
