"""Whole graph transformers: Performer, BigBird, SAN, Graphormer, GRIT, GECO and Spexphormer (low-width method)."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from graphgps_kmip.attention.exphormer import SampledEdgeAttention, TypedEdgeStart
from graphgps_kmip.attention.full import BiasedFullAttention, FullAttention
from graphgps_kmip.attention.grit import GRITAttention, PairUpdate
from graphgps_kmip.attention.head_arguments import dim_per_head
from graphgps_kmip.attention.performer import redraw_regularly
from graphgps_kmip.attention.san import ALL_PAIRS, NO_PAIRS, SANAttention
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer, SpexphormerModel
from graphgps_kmip.model.transformer_layers import (
    AttentionLayer,
    GECOBlock,
    GraphormerLayer,
    PostNormLayer,
    TransformerLayer,
    san_norms,
)
from graphgps_kmip.networks.gps_networks import read_dropout, read_norm
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.networks.network_stack import encoder, input_part, layers_width, prediction_head, stack
from graphgps_kmip.ops.row_layers import row_norms
from graphgps_kmip.registry import entries, named, register

# gt.layer_type -> whether edges and other pairs are normalised apart, with a learned gamma.
SAN_LAYERS = {"SANLayer": False, "SAN2Layer": True}
EDGE_SET = ("_edge_index", "_edges")  # how public codes end the names of an edge set


@register("network", "Performer")
def performer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Performer alone: gt.layers pre-norm layers over the nodes, whose random features are drawn anew in training.

    As in GraphGPS, heads are gt.dim_hidden / gt.n_heads wide, and queries, keys and values have biases. gt.attn_dropout
    is that of the attention's output, gt.dropout that of the feed-forward network (both 0 in GraphGPS).
    """
    gt = plan.settings.gt
    dim, heads = layers_width(plan.settings), gt.n_heads
    options = {"dim_head": dim_per_head(dim, heads), "use_bias": True}
    spec = entries("attention")["Performer"]
    layers = [
        TransformerLayer(dim, plan.build(spec, dim, heads, gt.attn_dropout, **options), gt.dropout)
        for _ in range(gt.layers)
    ]
    network = stack(plan, dim, dim_out, layers)
    redraw_regularly(network)
    return network


@register("network", "BigBird")
def big_bird(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """BigBird alone: gt.layers of its layers (gt.bigbird), each with norms and a feed-forward network."""
    gt = plan.settings.gt
    dim, spec = layers_width(plan.settings), entries("attention")["BigBird"]
    attentions = [plan.build(spec, dim, gt.n_heads, gt.dropout) for _ in range(gt.layers)]
    return stack(plan, dim, dim_out, [AttentionLayer(attention) for attention in attentions])


@register("network", "SANTransformer")
def san_transformer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """SAN: gt.layers layers of gt.layer_type, an encoder before, a head after."""
    dim = layers_width(plan.settings)
    return stack(plan, dim, dim_out, [_build_san_layer(plan.settings.gt, dim) for _ in range(plan.settings.gt.layers)])


def _build_san_layer(gt: Any, dim: int) -> PostNormLayer:
    if gt.graph_norm:
        raise ConfigError(
            "gt.graph_norm: SAN's layers have none: set it False, and gt.batch_norm or gt.layer_norm True"
        )
    attention = SANAttention(
        dim,
        gt.n_heads,
        gt.dropout,
        gamma=gt.gamma,
        secondary_edges=_choose_secondary_edges(gt),
        separate=look_up(SAN_LAYERS, gt.layer_type, "gt.layer_type"),
    )
    norm = partial(san_norms, layer_norm=gt.layer_norm, batch_norm=gt.batch_norm)
    return PostNormLayer(dim, attention, norm, gt.dropout)


def _choose_secondary_edges(gt: Any) -> str:
    if not gt.full_graph or gt.secondary_edges in (None, "", NO_PAIRS):
        return NO_PAIRS
    name = gt.secondary_edges
    for ending in EDGE_SET:
        name = name if name == ALL_PAIRS else name.removesuffix(ending)
    return name


@register("network", "Graphormer")
def graphormer_network(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Graphormer (Ying et al. 2021): graphormer.num_layers layers of attention, biased by GraphormerBias, and an MLP.

    Without posenc_GraphormerBias in the node encoder, or with its degrees only, the attention has no bias.
    """
    settings, graphormer = plan.settings, plan.settings.graphormer
    dim = layers_width(settings, "graphormer", "embed_dim", "num_layers")
    biased = plan.has_encoding("GraphormerBias") and not settings.posenc_GraphormerBias.node_degrees_only
    attention = BiasedFullAttention if biased else FullAttention
    layers = [
        GraphormerLayer(
            dim,
            attention(dim, graphormer.num_heads, graphormer.attention_dropout),
            graphormer.dropout,
            graphormer.mlp_dropout,
        )
        for _ in range(graphormer.num_layers)
    ]
    return stack(plan, dim, dim_out, layers)


@register("network", "GritTransformer")
def grit_transformer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GRIT: gt.layers layers of attention over all pairs of nodes, RRWP in dataset.node_encoder_name, no messages.

    Options of the attention are in gt.grit; gt.batch_norm and gt.layer_norm are of nodes and of pairs. The pair update
    of the last layer has parameters, but no gradient.
    """
    dim, gt = layers_width(plan.settings), plan.settings.gt
    layers = [_build_grit_layer(plan, dim, last=number == gt.layers - 1) for number in range(gt.layers)]
    return stack(plan, dim, dim_out, layers)


def _build_grit_layer(plan: NetworkPlan, dim: int, last: bool) -> PostNormLayer:
    gt, grit = plan.settings.gt, plan.settings.gt.grit
    norm = partial(row_norms, layer_norm=gt.layer_norm, batch_norm=gt.batch_norm)
    pairs = PairUpdate(dim, gt.dropout, norm(dim), update=grit.update_e and not last)
    attention = GRITAttention(dim, gt.n_heads, gt.attn_dropout, pairs=pairs, clamp=grit.clamp, out_dropout=gt.dropout)
    return PostNormLayer(dim, attention, norm, gt.dropout, plan.activation())


MIXERS = ("GECO", "Hyena")


@register("network", "GECO")
def geco(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GECO alone: gt.layers post-norm blocks of gt.layer_type GECO (gt.geco), or of Hyena, an ablation.

    gt.n_heads, gt.layer_norm and gt.batch_norm are not read.
    """
    gt, dim = plan.settings.gt, layers_width(plan.settings)
    if gt.layer_type not in MIXERS:
        raise ConfigError(
            f"gt.layer_type: model.type GECO stacks {' or '.join(MIXERS)}, not {gt.layer_type}: set one of them, or "
            "model.type GPSModel for message passing, too"
        )
    spec = entries("attention")[gt.layer_type]
    blocks = [
        GECOBlock(dim, plan.build(spec, dim, gt.n_heads, gt.dropout), gt.dropout, plan.activation())
        for _ in range(gt.layers)
    ]
    return stack(plan, dim, dim_out, blocks)


SAMPLED = "Spexphormer"  # layers along sampled edges
WHOLE = ("ScoreEstimator", "Exphormer")  # attentions along all edges, by the names of their registry entries


@register("network", "Spexphormer")
def spexphormer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Low-width method: gt.layer_type ScoreEstimator (stage 1), Spexphormer (stage 2, sampled edges) or Exphormer.

    Of an edge its kind is read (of the graph, of the expander, self loop), not its features.
    """
    settings = plan.settings
    dim, gt = layers_width(settings), settings.gt
    attentions = [_build_edge_attention(plan, dim) for _ in range(gt.layers)]
    layers = [SpexphormerLayer(dim, attention, gt.dropout, norm=read_norm(gt)) for attention in attentions]
    return SpexphormerModel(
        encoder=encoder(plan, dim, reads_edges=False),
        start=TypedEdgeStart(dim, gt.layer_type == "Exphormer" or gt.score_estimator.self_loops),
        layers=layers,
        head=prediction_head(plan, dim, dim_out),
        pre_mp=input_part(plan, dim),
        sampled=gt.layer_type == SAMPLED,
        recompute=settings.share.gradient_checkpointing,
    )


def _build_edge_attention(plan: NetworkPlan, dim: int) -> nn.Module:
    gt = plan.settings.gt
    specs: dict[str, Any] = {name: spec for name, spec in named("attention").items() if spec.name in WHOLE}
    spec = look_up(specs | {SAMPLED: None}, gt.layer_type, "gt.layer_type of model.type Spexphormer")
    if spec is None:
        if gt.n_heads < 1 or dim % gt.n_heads:
            raise ConfigError(f"gt.dim_hidden ({dim}) must be a multiple of gt.n_heads, got {gt.n_heads}")
        return SampledEdgeAttention(dim, gt.n_heads)
    without_virtual_nodes = {"num_virt_node": 0, "add_edge_index": True, "use_exp_edges": True}
    attention = plan.build(spec, dim, gt.n_heads, read_dropout(plan, spec), **without_virtual_nodes)
    del attention.initial_state
    return attention
