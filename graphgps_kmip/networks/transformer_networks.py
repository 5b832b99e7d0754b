"""Whole graph transformers: Performer, BigBird, SAN (Kreuzer et al. 2021) and Graphormer (Ying et al. 2021)."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphgps_kmip.attention.full import BiasedFullAttention, FullAttention
from graphgps_kmip.attention.head_arguments import dim_per_head
from graphgps_kmip.attention.performer import redraw_regularly
from graphgps_kmip.attention.san import ALL_PAIRS, NO_PAIRS, SANAttention
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import AttentionLayer, TransformerLayer
from graphgps_kmip.model.graphormer_layer import GraphormerLayer
from graphgps_kmip.model.san_layer import SANLayer
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import entries, register

# gt.layer_type -> whether edges and other pairs are normalised apart, with a learned gamma.
SAN_LAYERS = {"SANLayer": False, "SAN2Layer": True}
EDGE_SET = ("_edge_index", "_edges")  # how public codes end the names of an edge set


@register("network", "Performer")
def performer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Performer alone: gt.layers pre-norm layers over the nodes, whose random features are drawn anew in training.

    As in GraphGPS, heads are gt.dim_hidden / gt.n_heads wide, whatever gt.performer.dim_head says, and queries, keys
    and values have biases. Its dropouts are always 0; here gt.attn_dropout is that of the attention's output, and
    gt.dropout that of the feed-forward network. gt.layer_norm and gt.batch_norm are not read.
    """
    gt = plan.settings.gt
    dim, heads = layers_width(plan.settings), gt.n_heads
    given = {"dim_head": dim_per_head(dim, heads), "use_bias": True}
    spec = entries("attention")["Performer"]
    layers = [
        TransformerLayer(dim, plan.build(spec, dim, heads, gt.attn_dropout, **given), gt.dropout)
        for _ in range(gt.layers)
    ]
    network = stack(plan, dim, dim_out, layers)
    redraw_regularly(network)
    return network


@register("network", "BigBird")
def big_bird(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """BigBird alone: gt.layers of its layers over the nodes (gt.bigbird), each with norms and a feed-forward network.

    Positions are not encoded. As in GraphGPS, gt.layer_norm and gt.batch_norm are not read.
    """
    gt = plan.settings.gt
    dim, spec = layers_width(plan.settings), entries("attention")["BigBird"]
    attentions = [plan.build(spec, dim, gt.n_heads, gt.dropout) for _ in range(gt.layers)]
    return stack(plan, dim, dim_out, [AttentionLayer(attention) for attention in attentions])


@register("network", "SANTransformer")
def san_transformer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """SAN: gt.layers layers of gt.layer_type, an encoder before, a head after."""
    dim = layers_width(plan.settings)
    return stack(plan, dim, dim_out, [_san_layer(plan.settings.gt, dim) for _ in range(plan.settings.gt.layers)])


def _san_layer(gt: Any, dim: int) -> SANLayer:
    if gt.graph_norm:
        raise ConfigError(
            "gt.graph_norm: SAN's layers have none: set it False, and gt.batch_norm or gt.layer_norm True"
        )
    attention = SANAttention(
        dim,
        gt.n_heads,
        gt.dropout,
        gamma=gt.gamma,
        secondary_edges=_secondary_edges(gt),
        separate=look_up(SAN_LAYERS, gt.layer_type, "gt.layer_type"),
    )
    return SANLayer(
        dim, attention, gt.dropout, layer_norm=gt.layer_norm, batch_norm=gt.batch_norm, residual=gt.residual
    )


def _secondary_edges(gt: Any) -> str:
    """Return which pairs stand beside the edges: gt.full_graph is GraphGPS's switch, gt.secondary_edges Exphormer's."""
    if not gt.full_graph or gt.secondary_edges in (None, "", NO_PAIRS):
        return NO_PAIRS
    name = gt.secondary_edges
    for ending in EDGE_SET:
        name = name if name == ALL_PAIRS else name.removesuffix(ending)
    return name


@register("network", "Graphormer")
def graphormer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Graphormer (Ying et al. 2021): graphormer.num_layers layers of attention, biased by GraphormerBias, and an MLP.

    Without posenc_GraphormerBias in the node encoder, or with its degrees only, the attention has no bias.

    Raises:
        ConfigError: graphormer.embed_dim is not gnn.dim_inner, or there is no layer.
    """
    settings, node = plan.settings, plan.settings.graphormer
    dim = node.embed_dim
    if dim != settings.gnn.dim_inner:
        raise ConfigError(
            f"graphormer.embed_dim ({dim}) and gnn.dim_inner ({settings.gnn.dim_inner}) must be equal: encoder, layers "
            "and head share one width"
        )
    if node.num_layers < 1:
        raise ConfigError(f"graphormer.num_layers: expected 1 or more, got {node.num_layers}")
    biased = plan.has_encoding("GraphormerBias") and not settings.posenc_GraphormerBias.node_degrees_only
    attention = BiasedFullAttention if biased else FullAttention
    layers = [
        GraphormerLayer(dim, attention(dim, node.num_heads, node.attention_dropout), node.dropout, node.mlp_dropout)
        for _ in range(node.num_layers)
    ]
    return stack(plan, dim, dim_out, layers)
