"""GRIT as a network (Ma et al. 2023, "Graph Inductive Biases in Transformers without Message Passing")."""

from __future__ import annotations

from typing import Any

from torch import nn

from graphgps_kmip.attention.grit import GRITAttention, PairUpdate
from graphgps_kmip.common.row_layers import row_norms
from graphgps_kmip.model.grit_layer import GRITLayer
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.networks.network_stack import layers_width, stack
from graphgps_kmip.registry import register


@register("network", "GritTransformer")
def grit_transformer(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """GRIT: gt.layers layers of attention over all pairs of nodes, RRWP in dataset.node_encoder_name, no messages.

    Options of the attention are in gt.grit, those of the norms in grit; gt.batch_norm and gt.layer_norm are of nodes
    and, with gt.grit.norm_e, of pairs. Nothing reads the pair features behind the last layer, which leaves them out
    where that changes nothing: its update has parameters as in the public code, but no gradient.
    """
    dim, gt = layers_width(plan.settings), plan.settings.gt
    layers = [_layer(plan, dim, last=number == gt.layers - 1) for number in range(gt.layers)]
    return stack(plan, dim, dim_out, layers)


def _layer(plan: NetworkPlan, dim: int, last: bool) -> GRITLayer:
    gt, own = plan.settings.gt, plan.settings.grit
    options = gt.grit
    norms: dict[str, Any] = {
        "layer_norm": gt.layer_norm,
        "batch_norm": gt.batch_norm,
        "momentum": own.bn_momentum,
        "running": not own.bn_no_runner,
    }
    pair_norm = row_norms(dim, **norms) if options.norm_e else nn.Sequential()
    update = options.update_e and not last
    pairs = PairUpdate(dim, gt.dropout, pair_norm, linear=options.O_e, update=update, rezero=own.rezero)
    attention = GRITAttention(
        dim,
        gt.n_heads,
        gt.attn_dropout,
        pairs=pairs,
        clamp=options.clamp,
        act=options.act,
        use_bias=options.use_bias,
        edge_enhance=options.edge_enhance,
        deg_scaler=options.deg_scaler,
        out_dropout=gt.dropout,
    )
    return GRITLayer(dim, attention, gt.dropout, plan.activation(), **norms, rezero=own.rezero)
