"""Networks of the low-width method (Shirzad et al.): the narrow score estimator and the sparse network, Spexphormer."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphgps_kmip.attention.sampled_edges import SampledEdgeAttention
from graphgps_kmip.attention.typed_edges import TypedEdgeStart
from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model.spexphormer_model import SpexphormerLayer, SpexphormerModel
from graphgps_kmip.networks.branches import dropout_of
from graphgps_kmip.networks.gps_networks import norm_of
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import input_part, layers_width, node_encoder_alone, prediction_head
from graphgps_kmip.registry import named, register

KEY = "gt.layer_type"
SAMPLED = "Spexphormer"  # layers along sampled edges
WHOLE = ("ScoreEstimator", "Exphormer")  # attentions along all edges, by the names of their registry entries


@register("network", "Spexphormer")
def spexphormer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Low-width method: gt.layer_type ScoreEstimator (stage 1), Spexphormer (stage 2, sampled edges) or Exphormer.

    Of an edge its kind is read (of the graph, of the expander, self loop); dataset.edge_encoder and edge features
    are not. Norms and the feed-forward network (gt.FFN) are those of the public code.

    Raises:
        ConfigError: another gt.layer_type, or two norms.
    """
    settings = plan.settings
    dim, gt = layers_width(settings), settings.gt
    sampled = gt.layer_type == SAMPLED
    layers = [
        SpexphormerLayer(dim, _attention(plan, dim), gt.dropout, norm=norm_of(gt), ffn=gt.FFN) for _ in range(gt.layers)
    ]
    return SpexphormerModel(
        encoder=node_encoder_alone(plan, dim),
        start=TypedEdgeStart(dim, gt.layer_type == "Exphormer" or gt.score_estimator.self_loops),
        layers=layers,
        head=prediction_head(plan, dim, dim_out),
        pre_mp=input_part(plan, dim),
        sampled=sampled,
        recompute=settings.share.gradient_checkpointing,
    )


def _attention(plan: NetworkPlan, dim: int) -> nn.Module:
    """Return the attention of a layer; the vectors of the kinds of edges are the network's."""
    gt = plan.settings.gt
    known: dict[str, Any] = {name: spec for name, spec in named("attention").items() if spec.name in WHOLE}
    choice = look_up(known | {SAMPLED: None}, gt.layer_type, f"{KEY} of model.type Spexphormer")
    if choice is None:
        if gt.n_heads < 1 or dim % gt.n_heads:
            raise ConfigError(f"gt.dim_hidden ({dim}) must be a multiple of gt.n_heads, got {gt.n_heads}")
        return SampledEdgeAttention(dim, gt.n_heads)
    without_virtual_nodes = {"num_virt_node": 0, "add_edge_index": True, "use_exp_edges": True}
    attention = plan.build(choice, dim, gt.n_heads, dropout_of(plan, choice), **without_virtual_nodes)
    del attention.initial_state
    return attention
