"""Networks from the config with the facts of the data: `build_model`, the width search, GraphGym's own network.

Builders read a frozen copy of ``cfg``; components of other packages read ``cfg`` itself, which `served` fills for them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg
from torch_geometric.graphgym.init import init_weights
from torch_geometric.graphgym.models.layer import GeneralLayer, LayerConfig, new_layer_config
from torch_geometric.nn import BatchNorm
from yacs.config import CfgNode

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.common.yaml_files import flatten
from graphgps_kmip.compat.public_faults import repeat_faults
from graphgps_kmip.data import DatasetInfo
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.graphgym_registries import list_others
from graphgps_kmip.model import GPSModel
from graphgps_kmip.model.feature_encoding import UnitRows
from graphgps_kmip.networks.gps_networks import (
    GPS,
    HEADED,
    branch_rows,
    refuse_unread_recipe,
    warn_of_unread_settings,
    width_step,
)
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.networks.network_stack import encoder, input_part, prediction_head
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.registry import Spec, entries, named, register

NARROWEST, WIDEST = 32, 512  # of the public k-MIP code's search
BUILT = ("network", "head", "node_encoder", "edge_encoder", "activation")  # kinds whose builders may read ``cfg``


def set_values(config: CfgNode, values: Mapping[str, Any]) -> None:
    """Set dotted keys of a config."""
    for key, value in values.items():
        *groups, leaf = key.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[leaf] = value


def with_values(config: CfgNode, values: Mapping[str, Any]) -> CfgNode:
    """Return a frozen copy of a config with other values."""
    changed = config.clone()
    set_values(changed, values)
    changed.freeze()
    return changed


def with_facts(config: CfgNode, info: DatasetInfo, encoding_settings: Mapping[str, int]) -> CfgNode:
    """Return a frozen copy of a config with what GraphGym and its components look for there."""
    facts = {"share.dim_in": info.dim_in, "share.dim_out": info.dim_out, "share.num_splits": 3}
    return with_values(config, {**encoding_settings, **facts, "dataset.edge_dim": info.dim_edge})


@contextmanager
def served(config: CfgNode) -> Iterator[None]:
    """Let ``cfg`` have the content of another config, for code of other packages that reads nothing else."""
    if config is cfg:
        yield
        return
    before, was_frozen = dict(cfg), cfg.is_frozen()
    _replace(config, frozen=config.is_frozen())
    try:
        yield
    finally:
        _replace(before, frozen=was_frozen)


def _replace(content: Mapping[str, Any], frozen: bool) -> None:
    dict.clear(cfg)
    dict.update(cfg, content)  # not copies: groups keep their identity, and are frozen or not already
    cfg.__dict__[CfgNode.IMMUTABLE] = frozen


class NetworkModule(nn.Module):
    """A network under the name ``model``, with which GraphGym begins the names of parameters in checkpoints."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network

    @property
    def reads_encoded(self) -> bool:
        """Whether the network gives a batch with ``encoded`` features to its head alone, see `GPSModel`."""
        return getattr(self.model, "reads_encoded", False)

    def forward(self, batch: Any, split: str | None = None) -> Any:
        """Return the network's output; ``split`` is ``batch.split``, which networks of other packages read."""
        if split is not None:
            batch = copy.copy(batch)
            batch.split = split
        return self.model(batch)


def make_plan(config: CfgNode = cfg, dim_in: int | None = None) -> NetworkPlan:
    """Return what the builders of networks read, with the components of other packages, built while `served`."""

    def serve(entry: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        with served(config):
            return entry(*arguments, **keywords)

    others = {
        kind: {name: partial(serve, entry) for name, entry in rows.items()} if kind in BUILT else rows
        for kind, rows in list_others().items()
    }
    dim_in = config.share.dim_in if dim_in is None else dim_in
    return NetworkPlan(config, dim_in, config.dataset.edge_dim, others)


def build_network(name: str, dim_in: int, dim_out: int, config: CfgNode = cfg) -> nn.Module:
    """Return a new network by its name, ``model.type``."""
    plan = make_plan(config, dim_in)
    entry = look_up(plan.others["network"] | named("network"), name, "model.type")
    if not isinstance(entry, Spec):
        return entry(dim_in=dim_in, dim_out=dim_out)
    return repeat_faults(plan.build(entry, dim_in, dim_out), dict(flatten(plan.settings)), entry.name)


def build_for_graphgym(name: str, dim_in: int, dim_out: int) -> nn.Module:
    """Return a new network as GraphGym's ``create_model`` asks for it, of the width that the config asks for."""
    config = with_width(cfg)
    plan = make_plan(config, dim_in)
    refuse_unread_recipe(plan)
    warn_of_unread_settings(plan)
    return build_network(name, dim_in, dim_out, config)


def build_model(config: CfgNode) -> NetworkModule:
    """Return the model of a config with the facts of its data; two classes have one logit, as in GraphGym."""
    dim_out = config.share.dim_out
    if config.dataset.task_type == "classification" and dim_out == 2:
        dim_out = 1
    return NetworkModule(build_network(config.model.type, config.share.dim_in, dim_out, config))


def with_width(config: CfgNode) -> CfgNode:
    """Return the config with the largest width in 32..512 within the budget, found by bisection, if it asks so.

    A width is rounded up to a multiple of `width_step` before its parameters are counted; that of the values of k-MIP
    follows it, ``gt.kmip.dim_val`` = width / gt.n_heads, ``dim_kq`` stays (public k-MIP code). If even the narrowest is
    too large, it is taken, and the log warns. No random number is drawn.
    """
    if not config.model.auto_satisfy_param_budget:
        return config
    budget, best, low, high = config.model.param_budget, NARROWEST, NARROWEST, WIDEST
    while low <= high:
        middle = (low + high) // 2
        if count_parameters(_set_width(config, middle)) <= budget:
            best, low = middle, middle + 1
        else:
            high = middle - 1
    result = _set_width(config, best)
    count = count_parameters(result)
    if count > budget:
        logging.warning("model.param_budget %s is below the narrowest network: it has %s", f"{budget:,}", f"{count:,}")
    width = result.gnn.dim_inner
    logging.info("model.param_budget %s: width %d, %s parameters", f"{budget:,}", width, f"{count:,}")
    return result


def count_parameters(config: CfgNode) -> int:
    """Return the number of parameters of the configured network, which is built without memory for them."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return sum(parameter.numel() for parameter in build_model(config).parameters())


def _set_width(config: CfgNode, width: int) -> CfgNode:
    step = width_step(config)
    width = -(-width // step) * step
    values = {"gnn.dim_inner": width}
    if config.model.type == "Graphormer":
        values["graphormer.embed_dim"] = width
    if config.model.type in HEADED:
        values["gt.dim_hidden"] = width
        if config.model.type in GPS and any(row.name == "kMIP" for row in branch_rows(make_plan(config))):
            values["gt.kmip.dim_val"] = width // config.gt.n_heads
    return with_values(config, values)


# gnn.stage_type -> how (old, new) node features of a layer become those of the next one
STAGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "stack": lambda _, new: new,
    "skipsum": lambda old, new: old + new,
    "skipconcat": lambda old, new: torch.cat([old, new], dim=1),
}


class GraphGymLayer(nn.Module):
    """One of GraphGym's layers, ``(batch) -> batch``, of which a `GPSModel` can stack several.

    ``join`` is of `STAGES`; ``l2norm`` scales the rows to length 1 at last.

    Shapes:
        x (N, C), context -> (N, C'), edge_attr as the layer leaves it, states unchanged.
    """

    attention = ()  # read by GPSModel

    def __init__(self, layer: nn.Module, join: Callable[[Tensor, Tensor], Tensor], l2norm: bool = False) -> None:
        super().__init__()
        self.layer, self.join, self.unit = layer, join, UnitRows() if l2norm else nn.Identity()

    def forward(
        self, x: Tensor, context: GraphContext, states: tuple[object, ...] = ()
    ) -> tuple[Tensor, Tensor | None, tuple[object, ...]]:
        """Return new node features, edge features and the states."""
        batch = Data(x=x, edge_index=context.edge_index, edge_attr=context.edge_attr, batch=context.batch)
        batch.context = context  # for `OnBatch`
        batch = self.layer(batch)
        return self.unit(self.join(x, batch.x)), batch.edge_attr, states


@register("network", "gnn")
def graphgym_gnn(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GraphGym's own network: layers of gnn.layer_type, norm, dropout, activation, rows of length 1 (gnn.l2norm)."""
    if not isinstance(plan.settings, CfgNode):
        raise ConfigError("model.type gnn is GraphGym's own network, which needs its whole config: take custom_gnn")
    gnn = plan.settings.gnn
    dim, depth = gnn.dim_inner, gnn.layers_mp
    join = look_up(STAGES, gnn.stage_type, "gnn.stage_type")
    grows = gnn.stage_type == "skipconcat"
    features = encoder(plan, dim)
    features.apply(init_weights)  # of its linear maps; those of GraphGym's own layers keep their initial values
    layers = [
        GraphGymLayer(
            _general_layer(plan, dim * (i + 1) if grows else dim, dim),
            STAGES["stack"] if grows and i == depth - 1 else join,
            l2norm=gnn.l2norm and i == depth - 1,
        )
        for i in range(depth)
    ]
    head, recompute = prediction_head(plan, dim, dim_out), plan.settings.share.gradient_checkpointing
    return GPSModel(features, layers, head, input_part(plan, dim), recompute=recompute)


def _general_layer(plan: NetworkPlan, dim_in: int, dim: int) -> nn.Module:
    config = plan.settings
    look_up(graphgym.layer_dict, config.gnn.layer_type, "gnn.layer_type")
    look_up(graphgym.act_dict, config.gnn.act, "gnn.act")
    edge_dim = dim if config.dataset.edge_encoder else plan.edge_dim
    form = replace(new_layer_config(dim_in, dim, 1, has_act=True, has_bias=False, cfg=config), edge_dim=edge_dim)
    with served(config):
        layer = GeneralLayer(config.gnn.layer_type, form)
    layer.apply(init_weights)
    if form.has_batchnorm:  # torch's own refuses a batch of one node
        layer.post_layer[0] = BatchNorm(dim, form.bn_eps, form.bn_mom, allow_single_element=True)
    return layer


class OnBatch(nn.Module):
    """A message passing layer, or an attention, as GraphGym calls its own layers: ``(batch) -> batch``."""

    def __init__(self, conv: nn.Module, is_attention: bool) -> None:
        super().__init__()
        self.conv, self.is_attention = conv, is_attention

    def forward(self, batch: Any) -> Any:
        """Replace node features, and edge features where the layer has new ones."""
        context = batch.get("context") or GraphContext.from_data(batch)
        if self.is_attention:
            batch.x = self.conv(batch.x, context)
            return batch
        encoding = () if getattr(self.conv, "gate", None) is None else (context.encoding,)
        batch.x, batch.edge_attr = self.conv(batch.x, batch.edge_index, batch.edge_attr, *encoding)
        return batch


def as_layer(spec: Spec, build: Callable[[NetworkPlan, Spec, int], nn.Module]) -> Callable[[LayerConfig], nn.Module]:
    """Return a message passing layer or an attention in the form of GraphGym's ``layer_dict``."""

    def make(layer_config: LayerConfig) -> nn.Module:
        dim = layer_config.dim_out
        if layer_config.dim_in != dim:
            raise ConfigError(
                f"gnn.layer_type {spec.name} keeps its width, got {layer_config.dim_in} to {dim} columns: set "
                "gnn.stage_type stack or skipsum, and dataset.node_encoder True or gnn.layers_pre_mp 1"
            )
        return OnBatch(build(make_plan(), spec, dim), spec.kind == "attention")

    return make


def graphgym_layers() -> dict[str, Callable[[LayerConfig], nn.Module]]:
    """Return what GraphGPS adds to GraphGym's values of gnn.layer_type; dropout and residual are GraphGym's there."""

    def without(**options: Any) -> Callable[[NetworkPlan, Spec, int], nn.Module]:
        return lambda plan, spec, dim: plan.build(spec, dim, 0.0, nn.ReLU, equivstable_pe=False, **options)

    convs = entries("message_passing")
    return {
        "gatedgcnconv": as_layer(convs["GatedGCN"], without(residual=False, edge_residual=False)),
        "gineconv": as_layer(convs["GINE"], without(inner="mlp")),
    }
