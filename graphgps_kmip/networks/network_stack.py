"""Network stack: input encoder, pre-MLP and prediction head around the layers of every network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.encoding.rrwp import RRWPLinear
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import FeatureEncoder, GPSModel, input_layers
from graphgps_kmip.model.layer_recipe import JumpingConnections, LayerRecipe
from graphgps_kmip.networks.encoder_builders import edge_encoder, node_encoder
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.registry import Spec, named


def layers_width(settings: Any, group: str = "gt", width: str = "dim_hidden", layers: str = "layers") -> int:
    """Return the width of a network whose layers have these keys in a group.

    Raises:
        ConfigError: its parts would have different widths, or there are no layers.
    """
    dim, dim_layers, num_layers = settings.gnn.dim_inner, settings[group][width], settings[group][layers]
    if dim_layers != dim:
        raise ConfigError(
            f"{group}.{width} ({dim_layers}) and gnn.dim_inner ({dim}) must be equal: encoder, layers and head share "
            "one width"
        )
    if num_layers < 1:
        raise ConfigError(f"{group}.{layers}: expected 1 or more, got {num_layers}")
    return dim


def stack(
    plan: NetworkPlan,
    dim: int,
    dim_out: int,
    layers: Sequence[nn.Module],
    dim_edge: int | None = None,
    *,
    recipe: LayerRecipe = LayerRecipe(),  # noqa: B008 (frozen)
) -> GPSModel:
    """Return the network of these layers, of width C, with edge features of width ``dim_edge``, C if None."""
    return GPSModel(
        encoder=encoder(plan, dim, dim_edge),
        pre_mp=input_part(plan, dim),
        layers=layers,
        head=prediction_head(plan, dim, dim_out),
        recompute=plan.settings.share.gradient_checkpointing,
        jump=None if recipe.jump == "none" else JumpingConnections(dim, len(layers), recipe.jump),
        feature_dropout=recipe.feature_dropout,
        edge_dropout=recipe.edge_dropout,
    )


def encoder(plan: NetworkPlan, dim: int, dim_edge: int | None = None, reads_edges: bool = True) -> FeatureEncoder:
    """Return the encoder of nodes, to width ``dim``, and of edges that the network reads, to ``dim_edge``."""
    data, rrwp = plan.settings.dataset, None
    node = node_encoder(plan, data.node_encoder_name, dim) if data.node_encoder else None
    if isinstance(node, nn.Sequential) and isinstance(node[-1], RRWPLinear):  # comes after the norms
        node, rrwp = node[:-1], node[-1]
    dim_edge = dim_edge or dim
    edge = edge_encoder(plan, data.edge_encoder_name, dim_edge) if data.edge_encoder and reads_edges else None
    return FeatureEncoder(dim, node, edge, data.node_encoder_bn, data.edge_encoder_bn, dim_edge, rrwp)


def check_raw_width(plan: NetworkPlan, dim: int, otherwise: str = "") -> None:
    """Raise a ConfigError if nothing brings node features to the width of the layers; `otherwise`: what else helps."""
    if not plan.settings.dataset.node_encoder and plan.dim_in != dim:
        raise ConfigError(
            f"dataset.node_encoder is False, so gnn.dim_inner ({dim}) must be the data's width {plan.dim_in}: set "
            f"dataset.node_encoder True and dataset.node_encoder_name LinearNode{otherwise}"
        )


def input_part(plan: NetworkPlan, dim: int, any_width: bool = False) -> nn.Sequential | None:
    """Return gnn.layers_pre_mp layers between encoder and stack, or None; `any_width`: layers read raw features, too.

    Raises:
        ConfigError: nothing brings the data to the width of the layers.
    """
    gnn, raw = plan.settings.gnn, None if plan.settings.dataset.node_encoder else plan.dim_in
    if gnn.layers_pre_mp < 1 and not any_width:
        check_raw_width(plan, dim, ", or gnn.layers_pre_mp 1")
    return input_layers(dim, gnn.layers_pre_mp, gnn.batchnorm, gnn.dropout, plan.activation(), gnn.l2norm, raw)


def prediction_head(plan: NetworkPlan, dim: int, dim_out: int) -> nn.Module:
    """Return the head gnn.head; ours come before GraphGym's of the same name.

    Raises:
        ConfigError: it is unknown, or does not fit to graph tokens.
    """
    settings, name = plan.settings, plan.settings.gnn.head
    entry = look_up(dict(plan.others.get("head", {})) | named("head"), name, "gnn.head")
    head = build_head(plan, entry, dim, dim_out) if isinstance(entry, Spec) else entry(dim, dim_out)
    has_token = settings.graphormer.use_graph_token and plan.has_encoding("GraphormerBias")
    level = getattr(head, "level", "")  # "": of another package
    if has_token and level not in ("graph", ""):
        raise ConfigError(
            f"graphormer.use_graph_token: gnn.head {name} would predict the tokens of graphs, too: set it False"
        )
    if settings.model.graph_pooling == "graph_token" and level == "graph" and not has_token:
        raise ConfigError(
            "model.graph_pooling graph_token: the graphs have no token: set graphormer.use_graph_token True, with "
            "GraphormerBias as the last part of dataset.node_encoder_name, or take another pooling"
        )
    return head


def build_head(plan: NetworkPlan, spec: Spec, dim: int, dim_out: int) -> nn.Module:
    """Return a head, whose options come from the settings."""
    gnn = plan.settings.gnn
    options = {"num_layers": gnn.layers_post_mp, "pooling": plan.settings.model.graph_pooling, "dropout": gnn.dropout}
    return plan.build(spec, dim, dim_out, act=plan.activation(), **options)
