"""Registration with GraphGym: every registered component is entered into GraphGym's registries, later ones too."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.config import NAME, enter_group, set_defaults
from graphgps_kmip.gym.data import load_dataset
from graphgps_kmip.gym.graphgym_network import LAYERS
from graphgps_kmip.gym.graphgym_registries import (
    GRAPHGYM_REGISTRIES,
    OURS,
    offer,
    stand_first,
    stand_last,
    tolerate_later_packages,
)
from graphgps_kmip.gym.network_building import build_network, current_plan
from graphgps_kmip.gym.task import loss_and_score
from graphgps_kmip.networks.encoder_builders import build_encoder
from graphgps_kmip.networks.network_stack import build_head
from graphgps_kmip.registry import Spec, watch


def register_all() -> None:
    """Enter every component into GraphGym's registries, those registered later too; harmless when called again."""
    if not OURS:
        watch(_enter)
    for key, entry in LAYERS.items():
        offer(graphgym.layer_dict, key, entry)
    for registry, entry in (
        (graphgym.config_dict, set_defaults),
        (graphgym.loader_dict, load_dataset),
        (graphgym.loss_dict, loss_and_score),
    ):
        offer(registry, NAME, entry)
    stand_last(graphgym.config_dict)
    stand_first(graphgym.loader_dict)
    tolerate_later_packages()


def _enter(spec: Spec) -> None:
    """Enter a component into GraphGym's registry of its kind, and its config group into a live config."""
    if spec.kind in GRAPHGYM_REGISTRIES:
        for name in (spec.name, *spec.aliases):
            offer(GRAPHGYM_REGISTRIES[spec.kind], name, _for_graphgym(spec))
    if spec.options and "gt" in cfg and not cfg.is_frozen() and not _has_group(spec):
        enter_group(cfg, spec)


def _has_group(spec: Spec) -> bool:
    return reduce(lambda node, name: node.get(name) if node else None, spec.group.split("."), cfg) is not None


def _for_graphgym(spec: Spec) -> Callable[..., Any]:
    """Return a component in the form that GraphGym calls: its options come from the config."""
    forms: dict[str, Callable[..., Any]] = {
        "network": lambda dim_in, dim_out: build_network(spec.name, dim_in, dim_out),
        "head": lambda dim_in, dim_out: build_head(current_plan(), spec, dim_in, dim_out),
        "node_encoder": lambda dim: build_encoder(current_plan(), spec, dim),
        "edge_encoder": lambda dim: build_encoder(current_plan(), spec, dim),
    }
    return forms.get(spec.kind, spec.component)
