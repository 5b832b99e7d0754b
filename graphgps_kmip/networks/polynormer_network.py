"""Network Polynormer (Deng et al. 2024): local layers of GAT, the sum of their outputs, then global attention."""

from __future__ import annotations

from typing import Annotated

from torch import nn
from torch_geometric.nn import GATConv

from graphgps_kmip.attention.head_arguments import dim_per_head
from graphgps_kmip.attention.polynormer import ChannelGate, PolynormerAttention
from graphgps_kmip.model import GPSModel
from graphgps_kmip.model.layer_recipe import JumpingConnections
from graphgps_kmip.model.polynormer_layer import LocalToGlobalHead, PolynormerLayer
from graphgps_kmip.mpnn.message_passing import PlainConv
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import input_part, layers_width, node_encoder_alone, prediction_head
from graphgps_kmip.ranges import DROPOUT, LAYERS, NATURAL
from graphgps_kmip.registry import entries, register


@register("network", "Polynormer")
def polynormer(
    dim_in: int,  # noqa: ARG001
    dim_out: int,
    *,
    plan: NetworkPlan,
    global_layers: Annotated[int, LAYERS] = 2,
    local_epochs: Annotated[int, NATURAL] = 100,
    in_dropout: Annotated[float, DROPOUT] = 0.15,
) -> nn.Module:
    """Polynormer: gt.layers local layers of GAT, then global attention (gt.polynormer), from epoch local_epochs on.

    Before that epoch the sum of the local layers has a prediction head of its own. Outside of a training that counts
    epochs (`LocalToGlobalHead`) the network is global. gt.n_heads are the heads of both kinds of layers, gt.dropout is
    the dropout of the local ones and of the encoded features, gt.attn_dropout that of the global ones, and in_dropout
    that of the data. Norms and activations are those of the public code: gt.batch_norm, gt.layer_norm and gnn.act are
    not read in the layers. Edge features are not read. Self loops are replaced by one of each node.

    Differs from the public code: there, training goes back to the weights of the best local epoch at the switch; here
    it goes on from those of the last one.

    Raises:
        ValueError: gt.n_heads do not divide the width.
    """
    gt, dim = plan.settings.gt, layers_width(plan.settings)
    beta = plan.settings.gt.polynormer.beta
    heads_width = dim_per_head(dim, gt.n_heads)
    layers = [
        PolynormerLayer(
            dim,
            PlainConv(GATConv(dim, heads_width, gt.n_heads, bias=False)),
            ChannelGate(dim, beta, gt.layers),
            gt.dropout,
        )
        for _ in range(gt.layers)
    ]
    local_head, global_head = (prediction_head(plan, dim, dim_out) for _ in range(2))
    attention = _global_layers(plan, dim, global_layers)
    return GPSModel(
        encoder=node_encoder_alone(plan, dim),
        pre_mp=nn.Sequential(*(input_part(plan, dim) or ()), nn.Dropout(gt.dropout)),
        layers=layers,
        head=LocalToGlobalHead(dim, attention, local_head, global_head, local_epochs),
        recompute=plan.settings.share.gradient_checkpointing,
        jump=JumpingConnections(dim, gt.layers, "sum"),
        feature_dropout=in_dropout,
    )


def _global_layers(plan: NetworkPlan, dim: int, num_layers: int) -> list[PolynormerAttention]:
    """Return the global layers, which share their last linear map, as in the public code."""
    spec, gt = entries("attention")["Polynormer"], plan.settings.gt
    layers = [plan.build(spec, dim, gt.n_heads, gt.attn_dropout) for _ in range(num_layers)]
    for layer in layers:
        layer.out, layer.gate = layers[0].out, ChannelGate(dim, gt.polynormer.beta, num_layers)
    return layers
