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
from graphgps_kmip.networks.network_plan import NetworkPlan
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
    """Return the network of these layers.

    Args:
        plan: settings and dims.
        dim: width C.
        dim_out: outputs of the head.
        layers: first layer first.
        dim_edge: width of the encoded edge features, C if None.
        recipe: what stands around the layers.
    """
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


def encoder(plan: NetworkPlan, dim: int, dim_edge: int | None = None) -> FeatureEncoder:
    """Return the encoder of nodes, to width ``dim``, and of edges, to ``dim_edge`` or the same."""
    dim_edge = dim_edge or dim
    given = plan.settings.dataset
    node, rrwp = _node_part(plan, dim)
    edge = edge_encoder(plan, given.edge_encoder_name, dim_edge) if given.edge_encoder else None
    norms = (given.node_encoder_bn, given.edge_encoder_bn)
    return FeatureEncoder(dim, node, edge, *norms, dim_edge, rrwp)


def node_encoder_alone(plan: NetworkPlan, dim: int) -> FeatureEncoder:
    """Return the encoder of nodes of a network that reads no edge features: dataset.edge_encoder is not built."""
    node, rrwp = _node_part(plan, dim)
    return FeatureEncoder(dim, node, None, plan.settings.dataset.node_encoder_bn, rrwp=rrwp)


def _node_part(plan: NetworkPlan, dim: int) -> tuple[nn.Module | None, RRWPLinear | None]:
    """Return the encoder of nodes, and RRWP by itself where that is its last part: norms stand between them."""
    given = plan.settings.dataset
    node = node_encoder(plan, given.node_encoder_name, dim) if given.node_encoder else None
    if isinstance(node, nn.Sequential) and isinstance(node[-1], RRWPLinear):
        return node[:-1], node[-1]
    return node, None


def check_raw_width(plan: NetworkPlan, dim: int, otherwise: str = "") -> None:
    """Refuse node features that no encoder brings to the width of the layers.

    Args:
        plan: settings and dims.
        dim: width C.
        otherwise: what else would help, for the error.

    Raises:
        ConfigError: there is no node encoder, and the data has another width.
    """
    if not plan.settings.dataset.node_encoder and plan.dim_in != dim:
        raise ConfigError(
            f"dataset.node_encoder is False, so gnn.dim_inner ({dim}) must be the data's width {plan.dim_in}: set "
            f"dataset.node_encoder True and dataset.node_encoder_name LinearNode{otherwise}"
        )


def input_part(plan: NetworkPlan, dim: int) -> nn.Sequential | None:
    """Return gnn.layers_pre_mp layers between encoder and stack, or None.

    Raises:
        ConfigError: nothing brings the data to the width of the layers.
    """
    if plan.settings.gnn.layers_pre_mp < 1:
        check_raw_width(plan, dim, ", or gnn.layers_pre_mp 1")
    return pre_layers(plan, dim)


def pre_layers(plan: NetworkPlan, dim: int) -> nn.Sequential | None:
    """Return gnn.layers_pre_mp layers, or None, for a network that takes features of any width."""
    gnn, raw = plan.settings.gnn, None if plan.settings.dataset.node_encoder else plan.dim_in
    return input_layers(dim, gnn.layers_pre_mp, gnn.batchnorm, gnn.dropout, plan.activation(), gnn.l2norm, raw)


def prediction_head(plan: NetworkPlan, dim: int, dim_out: int) -> nn.Module:
    """Return the head gnn.head; ours come before GraphGym's of the same name.

    Raises:
        ConfigError: it is unknown, or does not fit to graph tokens, or to the lack of them.
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
    given = {"num_layers": gnn.layers_post_mp, "pooling": plan.settings.model.graph_pooling, "dropout": gnn.dropout}
    return plan.build(spec, dim, dim_out, act=plan.activation(), **given)
