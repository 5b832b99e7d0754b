"""Networks for the nodes of one graph: GCN, GAT and APPNP as in their papers, SGFormer and Polynormer."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import Linear
from torch_geometric.nn.attention import PolynormerAttention
from torch_geometric.nn.models import Polynormer, SGFormer

from graphgps_kmip.attention.head_arguments import dim_per_head
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import FeatureEncoder, GNNLayer, GPSModel
from graphgps_kmip.model.feature_encoding import SparseDropout
from graphgps_kmip.model.gps import States
from graphgps_kmip.model.prediction_heads import OutputHead
from graphgps_kmip.model.transformer_layers import LayerOutput
from graphgps_kmip.mpnn.message_passing import PlainConv, SummedAPPNP, SummedGAT, SummedGCN
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.networks.network_stack import encoder, input_part, layers_width
from graphgps_kmip.ops.context import GraphContext
from graphgps_kmip.ops.host_copies import host_copy, remember
from graphgps_kmip.ranges import DROPOUT, FRACTION, LAYERS, NATURAL, SOME_LAYERS
from graphgps_kmip.registry import register

NODE_HEADS = ("node", "inductive_node")


@register("network", "GCN")
def gcn(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """GCN alone (Kipf and Welling 2017): gnn.layers_mp convolutions, hidden ones gnn.dim_inner wide.

    Each input has dropout (gnn.dropout), gnn.act is between them.
    """
    return _stack_convs(plan, [SummedGCN(*widths) for widths in _list_widths(plan, dim_in, dim_out)])


@register("network", "GAT")
def gat(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """GAT alone (Veličković et al. 2018): as GCN, with gt.n_heads heads side by side and one in the last convolution.

    gt.attn_dropout is the dropout of attention weights.
    """
    dim, heads = plan.settings.gnn.dim_inner, plan.settings.gt.n_heads
    if dim % heads:
        raise ConfigError(f"gnn.dim_inner ({dim}) must be a multiple of gt.n_heads, got {heads}")
    *hidden, (width, out) = _list_widths(plan, dim_in, dim_out)
    options = {"dropout": plan.settings.gt.attn_dropout}
    convs = [SummedGAT(columns, dim // heads, heads, **options) for columns, _ in hidden]
    return _stack_convs(plan, [*convs, SummedGAT(width, out, 1, **options)])


@register("network", "APPNP")
def appnp(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    steps: Annotated[int, SOME_LAYERS] = 10,
    alpha: Annotated[float, FRACTION] = 0.1,
    edge_dropout: Annotated[float, DROPOUT] = 0.0,
) -> nn.Module:
    """APPNP alone (Gasteiger et al. 2019): gnn.layers_mp linear maps, then steps of personalised PageRank.

    alpha is the part of a node's own scores, edge_dropout that of the weights of edges and loops in each step. One map
    is SGC with alpha 0 (Wu et al. 2019), and without steps logistic regression on the features; more maps are an MLP.
    """
    *hidden, (width, out) = _list_widths(plan, dim_in, dim_out)
    convs = [LinearSteps(*widths) for widths in hidden]
    return _stack_convs(plan, [*convs, LinearSteps(width, out, steps, alpha, edge_dropout)])


class LinearSteps(nn.Module):
    """Linear map, then steps of personalised PageRank (`torch_geometric.nn.APPNP`).

    With ``alpha`` 0 the bias comes after the steps, as in SGC (Wu et al. 2019), else before, as in APPNP.

    Args:
        dim_in, dim_out (int): widths C, C'.
        steps (int, optional): number of steps; 0: the graph is not read. (default: 0)
        alpha (float, optional): part of a node's own features in each step. (default: 0.0)
        edge_dropout (float, optional): of the weights of edges and loops, drawn in each step. (default: 0.0)

    Shapes: x (N, C), edge_index (2, E) with one loop for each node -> (N, C').
    """

    def __init__(
        self, dim_in: int, dim_out: int, steps: int = 0, alpha: float = 0.0, edge_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.linear = Linear(dim_in, dim_out, weight_initializer="glorot", bias_initializer="zeros")
        self.add_self_loops = steps > 0
        self.propagation = SummedAPPNP(steps, alpha, edge_dropout) if steps else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return new features of the nodes."""
        if self.propagation is None:
            return self.linear(x)
        if self.propagation.alpha:
            return self.propagation(self.linear(x), edge_index)
        return self.propagation(F.linear(x, self.linear.weight), edge_index) + self.linear.bias


def _list_widths(plan: NetworkPlan, dim_in: int, dim_out: int) -> list[tuple[int, int]]:
    dim = layers_width(plan.settings, "gnn", "dim_inner", "layers_mp")
    return list(pairwise([dim_in, *[dim] * (plan.settings.gnn.layers_mp - 1), dim_out]))


def _stack_convs(plan: NetworkPlan, convs: list[nn.Module]) -> nn.Module:
    kind, data = plan.settings.model.type, plan.settings.dataset
    if data.node_encoder or data.edge_encoder:
        raise ConfigError(
            f"model.type {kind} takes the features of nodes as they are: set dataset.node_encoder and "
            "dataset.edge_encoder False, or take custom_gnn"
        )
    gnn = plan.settings.gnn
    layers = [GNNLayer(PlainConv(conv), plan.activation(), gnn.dropout) for conv in convs[:-1]]
    return GPSModel(
        encoder=FeatureEncoder(gnn.dim_inner, None, None),
        pre_mp=SparseDropout(gnn.dropout),
        layers=[*layers, GNNLayer(PlainConv(convs[-1]))],
        head=node_output_head(plan),
        recompute=plan.settings.share.gradient_checkpointing,
    )


def node_output_head(plan: NetworkPlan) -> OutputHead:
    """Return the head of a network whose last layer has the outputs of nodes; a ConfigError if gnn.head is another."""
    kind, head = plan.settings.model.type, plan.settings.gnn.head
    if head not in NODE_HEADS:
        raise ConfigError(f"gnn.head: model.type {kind} has none but {' and '.join(NODE_HEADS)}, got {head}")
    return OutputHead(masked=head == "node")


class NodeTransformer(nn.Module):
    """A network of torch_geometric, from node features to log-probabilities, as the only layer of a `GPSModel`.

    Args:
        network (Module): ``(x, edge_index, batch) -> (N, classes)``; with ``local_epochs``, a `Polynormer`.
        binary (bool): of two classes, return the difference of their log-probabilities: the logit of the second.
        local_epochs (int, optional): epochs of a training before the global phase of Polynormer, in which a new network
            is; the phase of the last training epoch is part of the state. (default: None)

    Shapes: x (N, C), context -> (N, classes), or (N, 1) if binary; edge_attr and states as they are.
    """

    attention = ()  # read by GPSModel: no states

    def __init__(self, network: nn.Module, binary: bool, local_epochs: int | None = None) -> None:
        super().__init__()
        self.network, self.binary, self.local_epochs = network, binary, local_epochs
        if local_epochs is not None:
            self.register_buffer("is_global", torch.tensor(True))

    def forward(self, x: Tensor, context: GraphContext, states: States = ()) -> LayerOutput:
        """Return predictions of all nodes, the edge features and the states."""
        if context.num_graphs != 1:
            raise ConfigError(
                f"model.type {type(self.network).__name__} takes one graph, got a batch of {context.num_graphs}: take "
                "another network, or a data set of one graph"
            )
        if self.local_epochs is not None:
            if self.training and context.epoch is not None:
                is_global = context.epoch >= self.local_epochs
                remember(self.is_global.fill_(is_global), torch.tensor(is_global))
            self.network._global = bool(host_copy(self.is_global))
        y = self.network(x, context.edge_index, context.batch)
        return y[:, 1:] - y[:, :1] if self.binary else y, context.edge_attr, states


@register("network", "SGFormer")
def sgformer(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    attention_layers: Annotated[int, LAYERS] = 1,
    graph_weight: Annotated[float, FRACTION] = 0.8,
) -> nn.Module:
    """SGFormer of torch_geometric: attention_layers of linear attention next to gt.layers of GCN, on one graph.

    gt.dropout is that of GCN, gt.attn_dropout that of the attention, whose gt.n_heads heads are as wide as the network.
    Edge features, gt.batch_norm, gnn.act and gnn.layers_post_mp are not read.
    """
    gt, dim = plan.settings.gt, layers_width(plan.settings)
    columns, classes = _check_widths(plan, dim, dim_in, dim_out)
    network = SGFormer(
        columns,
        dim,
        classes,
        trans_num_layers=attention_layers,
        trans_num_heads=gt.n_heads,
        trans_dropout=gt.attn_dropout,
        gnn_num_layers=gt.layers,
        gnn_dropout=gt.dropout,
        graph_weight=graph_weight,
    )
    return _build_model(plan, dim, NodeTransformer(network, dim_out == 1))


@register("network", "Polynormer")
def polynormer(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    global_layers: Annotated[int, LAYERS] = 2,
    local_epochs: Annotated[int, NATURAL] = 100,
    in_dropout: Annotated[float, DROPOUT] = 0.15,
    beta: Annotated[float, FRACTION] = 0.9,
) -> nn.Module:
    """Polynormer of torch_geometric: gt.layers local layers, then global ones from epoch local_epochs, on one graph.

    Local layers are GAT with gt.dropout; global ones have gt.attn_dropout, what the first
    layer reads in_dropout. Edge features, gt.batch_norm, gnn.act and gnn.layers_post_mp are not read.
    """
    gt, dim = plan.settings.gt, layers_width(plan.settings)
    head_dim = dim_per_head(dim, gt.n_heads)
    columns, classes = _check_widths(plan, dim, dim_in, dim_out)
    network = Polynormer(
        columns,
        head_dim,
        classes,
        local_layers=gt.layers,
        global_layers=global_layers,
        in_dropout=in_dropout,
        dropout=gt.dropout,
        heads=gt.n_heads,
        beta=beta,
    )
    # torch_geometric 2.8.1 makes these for inputs as wide as one head, and stops in the global phase with more.
    network.global_attn = nn.ModuleList(
        PolynormerAttention(dim, gt.n_heads, head_dim, beta, qk_shared=True, dropout=gt.attn_dropout)
        for _ in range(global_layers)
    )
    del network.lin_in  # never called
    return _build_model(plan, dim, NodeTransformer(network, dim_out == 1, local_epochs))


def _check_widths(plan: NetworkPlan, dim: int, dim_in: int, dim_out: int) -> tuple[int, int]:
    """Return columns in, and the number of log-probabilities: two for one logit."""
    if plan.settings.dataset.task_type not in ("", "classification"):
        raise ConfigError(
            f"dataset.task_type: model.type {plan.settings.model.type} gives log-probabilities of classes, not "
            f"{plan.settings.dataset.task_type}: take another network"
        )
    encoded = plan.settings.dataset.node_encoder or plan.settings.gnn.layers_pre_mp > 0
    return dim if encoded else dim_in, max(dim_out, 2)


def _build_model(plan: NetworkPlan, dim: int, layer: NodeTransformer) -> nn.Module:
    return GPSModel(
        encoder=encoder(plan, dim, reads_edges=False),
        pre_mp=input_part(plan, dim, any_width=True),
        layers=[layer],
        head=node_output_head(plan),
        recompute=plan.settings.share.gradient_checkpointing,
    )
