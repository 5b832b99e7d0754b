"""Registration with GraphGym: every registered component is entered into GraphGym's registries, later ones too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg, set_cfg
from yacs.config import CfgNode

from graphgps_kmip.encoding.positional_encoding import PositionalEncoding
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.config_defaults import NAME, enter_group, set_defaults
from graphgps_kmip.gym.config_loading import load_config, parse_overrides, read_settings
from graphgps_kmip.gym.data_loading import load_dataset
from graphgps_kmip.gym.graphgym_registries import (
    GRAPHGYM_REGISTRIES,
    OURS,
    WATCHERS,
    has_network,
    offer,
    put_first,
    put_last,
    tolerate_later_packages,
)
from graphgps_kmip.gym.network_building import as_layer, build_for_graphgym, graphgym_layers, make_plan
from graphgps_kmip.gym.train_modes import from_graphgym, loss_and_score, run_mode_of_graphgym, with_options
from graphgps_kmip.networks.gps_networks import build_branch
from graphgps_kmip.networks.network_stack import build_encoder, build_head, composed_names, edge_encoder, node_encoder
from graphgps_kmip.registry import Spec, named, register, watch
from graphgps_kmip.task.task import SCORES


def register_all() -> None:
    """Enter every component into GraphGym's registries, those registered later too; harmless when called again."""
    if not OURS:
        watch(_enter)
        _enter_composed_names()
        WATCHERS.append(_adopt)
        for registry in (graphgym.loss_dict, graphgym.pooling_dict, graphgym.metric_dict):
            for key, entry in list(registry.items()):
                _adopt(registry, key, entry)
    for key, entry in graphgym_layers().items():
        offer(graphgym.layer_dict, key, entry)
    for registry, entry in (
        (graphgym.config_dict, declare_keys),
        (graphgym.loader_dict, load_dataset),
        (graphgym.loss_dict, loss_and_score),
    ):
        offer(registry, NAME, entry)
    put_last(graphgym.config_dict)
    for registry in (graphgym.loader_dict, graphgym.loss_dict):
        put_first(registry)
    tolerate_later_packages()


def _enter(spec: Spec) -> None:
    if spec.kind in GRAPHGYM_REGISTRIES:
        for name in (spec.name, *spec.aliases):
            offer(GRAPHGYM_REGISTRIES[spec.kind], name, _wrap_component(spec))
    if spec.kind in ("attention", "message_passing"):
        for name in (spec.name, *spec.aliases):
            offer(graphgym.layer_dict, name, as_layer(spec, build_branch))
    if spec.kind == "encoding" and not (
        isinstance(spec.component, type) and issubclass(spec.component, PositionalEncoding)
    ):
        raise ConfigError(
            f"register encoding: {spec.name!r} is no subclass of NodeEncoding, EdgeEncoding or PositionalEncoding of "
            "graphgps_kmip.encoding: make it one"
        )
    if spec.kind in ("node_encoder", "edge_encoder", "encoding") and NAME in graphgym.loader_dict:  # a later one
        _enter_composed_names()
    if spec.options and "gt" in cfg and not cfg.is_frozen():
        group = reduce(lambda node, name: node.get(name) if node else None, spec.group.split("."), cfg)
        if group is None:
            enter_group(cfg, spec)


def _enter_composed_names() -> None:
    for kind, build in (("node_encoder", node_encoder), ("edge_encoder", edge_encoder)):
        registry = GRAPHGYM_REGISTRIES[kind]
        for name in composed_names(kind):
            if name not in OURS.get(id(registry), {}):
                offer(registry, name, lambda dim, build=build, name=name: build(make_plan(), name, dim))


def _adopt(registry: dict[Any, Any], key: Any, entry: Any) -> None:
    if registry is graphgym.loss_dict and key != NAME and key not in named("loss"):
        register("loss", key, from_graphgym(entry), tasks=tuple(SCORES), summary=f"loss of {entry.__module__}")
    if registry is graphgym.pooling_dict and key not in named("pooling"):
        register("pooling", key, entry)
    if registry is graphgym.metric_dict:
        logging.warning(
            "register_metric %r: read by GraphGym's own loop alone, use register('metric', %r, ...)", key, key
        )


def _wrap_component(spec: Spec) -> Callable[..., Any]:
    if spec.kind in ("optimizer", "scheduler") and spec.options:
        return with_options(spec)
    forms: dict[str, Callable[..., Any]] = {
        "train_mode": lambda loggers, *arguments: run_mode_of_graphgym(spec.component, *arguments),  # noqa: ARG005
        "network": lambda dim_in, dim_out: build_for_graphgym(spec.name, dim_in, dim_out),
        "head": lambda dim_in, dim_out: build_head(make_plan(), spec, dim_in, dim_out),
        "node_encoder": lambda dim: build_encoder(make_plan(), spec, dim),
        "edge_encoder": lambda dim: build_encoder(make_plan(), spec, dim),
    }
    return forms.get(spec.kind, spec.component)


class StockConfig(CfgNode):
    """GraphGym's ``cfg``, which `load_config` fills for a network of ours, whatever package's main program reads it."""

    def merge_from_file(self, cfg_filename: str) -> None:
        """Merge a YAML file."""
        self.__dict__["file"] = cfg_filename
        if self._names_our_network(cfg_filename, []):
            load_config(self, cfg_filename, [])
        else:
            super().merge_from_file(cfg_filename)

    def merge_from_list(self, cfg_list: list[Any]) -> None:
        """Merge the command line; the first after a file is read together with it."""
        file = self.__dict__.pop("file", None)
        if file is not None and self._names_our_network(file, cfg_list):
            load_config(self, file, cfg_list)
            if self.pretrained.dir:  # another main program knows other names of parameters, or ignores the key
                raise ConfigError(
                    f"pretrained.dir {self.pretrained.dir}: only graphgps_kmip's main.py begins with the parameters of "
                    "an earlier run: train by it, or leave the key out"
                )
            return
        if file is not None and self._names_our_network(file, []):
            set_cfg(self)
            self.set_new_allowed(self.is_new_allowed())  # GRIT's main allows new keys, in all groups
            super().merge_from_file(file)
        super().merge_from_list(cfg_list)

    @classmethod
    def _decode_cfg_value(cls, value: Any) -> Any:
        return CfgNode._decode_cfg_value(value)  # yacs makes groups of this class, and compares their types

    def _names_our_network(self, file: str, overrides: list[Any]) -> bool:
        settings = {key: value for key, value, _ in read_settings(Path(file))} | dict(parse_overrides(overrides))
        network = settings.get("model.type", self.model.type)
        return has_network(network) or network not in graphgym.network_dict  # e.g. of its own custom_modules


def declare_keys(cfg: CfgNode) -> None:
    """Add our keys to GraphGym's config; defaults of other packages, if there are any, stay until a file is read."""
    before = cfg.clone() if set(graphgym.config_dict) - {NAME} else CfgNode()
    set_defaults(cfg)
    _put_back(cfg, before)
    object.__setattr__(cfg, "__class__", StockConfig)  # yacs takes it for a key


def _put_back(cfg: CfgNode, values: CfgNode) -> None:
    for key, value in values.items():
        if isinstance(value, CfgNode) and isinstance(cfg.get(key), CfgNode):
            _put_back(cfg[key], value)
        else:
            cfg[key] = value
