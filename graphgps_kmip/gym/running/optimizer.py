"""Optimizer and learning rate schedule of the config, and which layers the weight decay is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch_geometric.graphgym.config import cfg, from_config
from torch_geometric.graphgym.optim import create_optimizer, create_scheduler

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.registry import named

DECAYED = ("all", "first")


def current_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimiser of a model's parameters; weight decay is for those of ``optim.weight_decay_layers``.

    Raises:
        ConfigError: another value than `DECAYED`; or ``first``, and something that learns stands before the layers.
    """
    learned = (parameter for parameter in model.parameters() if parameter.requires_grad)
    optimizer = _created("optimizer", cfg.optim.optimizer, learned, create_optimizer)
    layers = cfg.optim.weight_decay_layers
    if layers not in DECAYED:
        raise ConfigError(f"optim.weight_decay_layers: expected one of {', '.join(DECAYED)}, got {layers!r}")
    if layers == "first":
        _decay_only(optimizer, _first_layer(getattr(model, "model", model)))  # GraphGym wraps its networks once
    return optimizer


def _first_layer(network: nn.Module) -> set[nn.Parameter]:
    before = [part for name, part in network.named_children() if name in ("encoder", "pre_mp")]
    if not hasattr(network, "layers") or any(True for part in before for _ in part.parameters()):
        raise ConfigError(
            f"optim.weight_decay_layers first: of model.type {cfg.model.type} it is not clear which layer is first: "
            "take GCN or GAT, or all"
        )
    return set(network.layers[0].parameters())


def _decay_only(optimizer: Optimizer, decayed: set[nn.Parameter]) -> None:
    """Move all other parameters to a group of their own, without weight decay."""
    (group,) = optimizer.param_groups
    others = [parameter for parameter in group["params"] if parameter not in decayed]
    group["params"] = [parameter for parameter in group["params"] if parameter in decayed]
    optimizer.add_param_group({**group, "params": others, "weight_decay": 0.0})


def current_scheduler(optimizer: Optimizer) -> Any:
    """Return the learning rate schedule ``optim.scheduler``."""
    return _created("scheduler", cfg.optim.scheduler, optimizer, create_scheduler)


def _created(kind: str, name: str, first: Any, create: Callable[..., Any]) -> Any:
    """Return an optimizer or a schedule; options of its own come from its config group, the rest from ``optim``."""
    spec = named(kind).get(name)
    if spec is None or not spec.options:
        return create(first, cfg.optim)
    group = {option: cfg[kind][spec.name.lower()][option] for option in spec.options}
    return from_config(partial(spec.component, **group))(first, cfg=cfg.optim)
