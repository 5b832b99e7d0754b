"""GCN and GAT as their papers have them: convolutions from the raw features to the classes, and nothing around them."""

from __future__ import annotations

from torch import nn

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSModel
from graphgps_kmip.model.feature_encoding import SparseDropout
from graphgps_kmip.model.prediction_heads import OutputHead
from graphgps_kmip.mpnn.message_passing import PlainConv
from graphgps_kmip.mpnn.summed_convolutions import SummedGAT, SummedGCN
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.registry import register

NODE_HEADS = ("node", "inductive_node")


@register("network", "GCN")
def gcn(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """GCN alone (Kipf and Welling 2017): gnn.layers_mp convolutions, hidden ones gnn.dim_inner wide.

    Before each one is dropout of its input (gnn.dropout), between them the activation gnn.act.
    """
    return _network(plan, [SummedGCN(width, out) for width, out, _ in _widths(plan, dim_in, dim_out)])


@register("network", "GAT")
def gat(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """GAT alone (Veličković et al. 2018): as GCN, with gt.n_heads heads side by side and one in the last convolution.

    gt.attn_dropout is the dropout of attention weights.

    Raises:
        ConfigError: the heads do not divide the width.
    """
    dim, heads = plan.settings.gnn.dim_inner, plan.settings.gt.n_heads
    if dim % heads:
        raise ConfigError(f"gnn.dim_inner ({dim}) must be a multiple of gt.n_heads, got {heads}")
    return _network(
        plan,
        [
            SummedGAT(width, out, 1, dropout=plan.settings.gt.attn_dropout)
            if last
            else SummedGAT(width, out // heads, heads, dropout=plan.settings.gt.attn_dropout)
            for width, out, last in _widths(plan, dim_in, dim_out)
        ],
    )


def _widths(plan: NetworkPlan, dim_in: int, dim_out: int) -> list[tuple[int, int, bool]]:
    """Return columns in, columns out, and whether it is the last one, of each convolution."""
    depth = plan.settings.gnn.layers_mp
    if depth < 1:
        raise ConfigError(f"gnn.layers_mp: expected 1 or more, got {depth}")
    widths = [dim_in, *[plan.settings.gnn.dim_inner] * (depth - 1), dim_out]
    return [(widths[i], widths[i + 1], i == depth - 1) for i in range(depth)]


def _network(plan: NetworkPlan, convs: list[nn.Module]) -> nn.Module:
    """Return the stack: dropout of the features, then layers of convolution, activation, dropout; the last one bare.

    Raises:
        ConfigError: there is an encoder, or a head for something other than nodes.
    """
    kind, data = plan.settings.model.type, plan.settings.dataset
    if data.node_encoder or data.edge_encoder:
        raise ConfigError(
            f"model.type {kind} takes the features of nodes as they are: set dataset.node_encoder and "
            "dataset.edge_encoder False, or take custom_gnn"
        )
    layers = [GNNLayer(PlainConv(conv), plan.activation(), plan.settings.gnn.dropout) for conv in convs[:-1]]
    return GPSModel(
        encoder=FeatureEncoder(plan.settings.gnn.dim_inner, None, None),
        pre_mp=SparseDropout(plan.settings.gnn.dropout),
        layers=[*layers, GNNLayer(PlainConv(convs[-1]))],
        head=node_output_head(plan),
        recompute=plan.settings.share.gradient_checkpointing,
    )


def node_output_head(plan: NetworkPlan) -> OutputHead:
    """Return the head of a network whose last layer has the outputs of nodes.

    Raises:
        ConfigError: gnn.head is for something other than nodes.
    """
    kind, head = plan.settings.model.type, plan.settings.gnn.head
    if head not in NODE_HEADS:
        raise ConfigError(f"gnn.head: model.type {kind} has none but {' and '.join(NODE_HEADS)}, got {head}")
    return OutputHead(masked=head == "node")
