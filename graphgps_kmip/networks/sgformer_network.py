"""Network SGFormer (Wu et al. 2023): one layer of simple global attention beside graph convolutions."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from graphgps_kmip.model import GPSModel
from graphgps_kmip.model.sgformer_layer import AGGREGATES, AttentionBranch, ConvolutionBranch, SGFormerLayer
from graphgps_kmip.mpnn.message_passing import PlainConv
from graphgps_kmip.mpnn.summed_convolutions import SummedGCN
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, node_encoder_alone, pre_layers, prediction_head
from graphgps_kmip.ranges import FRACTION, LAYERS, Choice
from graphgps_kmip.registry import entries, register


@register("network", "SGFormer")
def sgformer(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    attention_layers: Annotated[int, LAYERS] = 1,
    graph_weight: Annotated[float, FRACTION] = 0.8,
    aggregate: Annotated[str, Choice(AGGREGATES)] = "add",
) -> nn.Module:
    """SGFormer: attention_layers of attention (gt.sgformer) beside gt.layers of GCN, each branch with an input layer.

    Without a node encoder the branches read the features of the data, as in the paper. gt.dropout is the dropout of the
    branch of GCN, gt.attn_dropout that of the branch of attention, gt.n_heads are its heads, each as wide as the
    network (the paper has one). Norms and activations are those of the public code: gt.batch_norm, gt.layer_norm and
    gnn.act are not read in the branches. Edge features are not read. Self loops are replaced by one of each node.

    The form is that of the public code for large graphs; that for medium ones leaves out norms, activations and
    residuals by its command line.
    """
    settings, dim = plan.settings, layers_width(plan.settings)
    gt, spec = settings.gt, entries("attention")["SGFormer"]
    encoded = settings.dataset.node_encoder or settings.gnn.layers_pre_mp > 0
    width = dim if encoded else dim_in
    attention = [plan.build(spec, dim, gt.n_heads, 0.0) for _ in range(attention_layers)]
    convs = [PlainConv(SummedGCN(dim, dim)) for _ in range(gt.layers)]
    layer = SGFormerLayer(
        AttentionBranch(width, dim, attention, gt.attn_dropout),
        ConvolutionBranch(width, dim, convs, gt.dropout),
        graph_weight,
        aggregate,
    )
    return GPSModel(
        encoder=node_encoder_alone(plan, dim),
        pre_mp=pre_layers(plan, dim),
        layers=[layer],
        head=prediction_head(plan, dim if aggregate == "add" else 2 * dim, dim_out),
        recompute=settings.share.gradient_checkpointing,
    )
