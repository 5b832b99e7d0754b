"""Builders of prediction heads, ``(dim_in, dim_out, *, options) -> module``, under their public names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from torch import nn

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import EdgeHead, GraphHead, NodeHead, SequenceHead
from graphgps_kmip.model.prediction_heads import LinearHead, PairHead, san_graph_head
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.ranges import NATURAL, Choice
from graphgps_kmip.registry import register

Act = Callable[[], nn.Module]


def hidden_options(plan: NetworkPlan) -> dict[str, Any]:
    """Return the options of a head's hidden layers; GraphGym's have a ReLU, no dropout, and rows of length 1."""
    if plan.settings.model.type == "gnn" or plan.settings.gnn.l2norm:
        return {"dropout": 0.0, "act": nn.ReLU, "l2norm": True}
    return {"dropout": plan.settings.gnn.dropout, "act": plan.activation()}


@register("head", "graph")
def graph(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP: one prediction per graph."""
    return GraphHead(dim_in, dim_out, num_layers, pooling, **hidden_options(plan))


@register("head", "mlp_graph")
def mlp_graph(dim_in: int, dim_out: int, *, num_layers: int, pooling: str, dropout: float, act: Act) -> nn.Module:
    """As graph, with dropout before each layer of the MLP: also on the pooled nodes."""
    return GraphHead(dim_in, dim_out, num_layers, pooling, dropout, act, input_dropout=True)


@register("head", "san_graph")
def san_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP that halves the width twice: one prediction per graph."""
    return san_graph_head(dim_in, dim_out, pooling, act=plan.layer_activation())


@register("head", "ogb_code_graph")
def ogb_code_graph(dim_in: int, dim_out: int, *, pooling: str) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then one linear map for each of the 5 words of a name."""
    return SequenceHead(dim_in, dim_out, pooling=pooling)


@register("head", "graphormer_graph")
def graphormer_graph(dim_in: int, dim_out: int, *, pooling: str) -> nn.Module:
    """LayerNorm of the nodes, pool them (model.graph_pooling), then one linear map: one prediction per graph."""
    return GraphHead(dim_in, dim_out, pooling=pooling, node_norm=True)


@register("head", "linear_graph", aliases=("linear_graph_nodecay",))
def linear_graph(
    dim_in: int,
    dim_out: int,
    *,
    num_layers: int,
    pooling: str | None,
    dropout: float,
    act: Act,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """Pool the nodes (model.graph_pooling, also cls_token), norm, dropout, an MLP that keeps the width: PPGT's.

    ``halve_widths`` halves each hidden layer; ``out_bn`` normalises the ``out_dim`` outputs (0: those of the data).
    """
    options = {"norm": post_pooling_norm, "halve_widths": halve_widths, "out_bn": out_bn}
    return LinearHead(dim_in, out_dim or dim_out, num_layers, pooling, dropout, act, **options)


@register("head", "linear_node", aliases=("linear_node_nodecay",))
def linear_node(
    dim_in: int,
    dim_out: int,
    *,
    num_layers: int,
    dropout: float,
    act: Act,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """As linear_graph, without pooling: predictions of all nodes, or of those of the split at hand."""
    options = {"norm": post_pooling_norm, "halve_widths": halve_widths, "out_bn": out_bn}
    return LinearHead(dim_in, out_dim or dim_out, num_layers, None, dropout, act, **options)


@register("head", "node")
def node(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """MLP on the nodes of the split at hand: one graph, divided by masks (transductive)."""
    return NodeHead(dim_in, dim_out, num_layers, masked=True, **hidden_options(plan))


@register("head", "inductive_node")
def inductive_node(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """MLP on all nodes of every graph: whole graphs are divided (inductive)."""
    return NodeHead(dim_in, dim_out, num_layers, **hidden_options(plan))


@register("head", "inductive_edge")
def inductive_edge(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:  # noqa: ARG001
    """Logits of labelled pairs of nodes (model.edge_decoding) and ranks within their graph: many graphs."""
    return EdgeHead(dim_in, num_layers, plan.settings.model.edge_decoding, **hidden_options(plan))


@register("head", "link_pred")
def link_pred(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:  # noqa: ARG001
    """Logits of labelled pairs of nodes (model.edge_decoding), without ranks: also for one large graph."""
    return EdgeHead(dim_in, num_layers, plan.settings.model.edge_decoding, ranked=False, **hidden_options(plan))


@register("head", "edge")
def edge(dim_in: int, dim_out: int, *, plan: NetworkPlan, num_layers: int) -> nn.Module:
    """Class or targets of labelled pairs of nodes (dataset.task_type; model.edge_decoding concat for several)."""
    decoding = plan.settings.model.edge_decoding
    return EdgeHead(dim_in, num_layers, decoding, ranked=False, dim_out=dim_out, **hidden_options(plan))


@register("head", "infer_links")
def infer_links(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001
    """Logits of all pairs of nodes: is there an edge (dataset.infer_link_label edge)."""
    if plan.settings.dataset.infer_link_label != "edge":
        raise ConfigError(
            f"dataset.infer_link_label: infer_links knows edge only, got {plan.settings.dataset.infer_link_label}"
        )
    return PairHead()


# What has a label -> heads that predict something else, with what fits.
UNFIT: dict[str, tuple[tuple[str, ...], str]] = {
    "graph": (("node", "inductive_node", "linear_node", "inductive_edge", "link_pred", "edge"), "graph"),
    "inductive_node": (("graph", "mlp_graph", "san_graph", "graphormer_graph", "linear_graph"), "inductive_node"),
    "sampled": (("graph", "mlp_graph", "san_graph", "graphormer_graph", "linear_graph"), "node"),
}
UNFIT["subgraph"] = UNFIT["graph"]
UNFIT["link"] = ((*UNFIT["sampled"][0], "node", "inductive_node", "linear_node"), "edge or link_pred")
UNFIT["node"] = ((*UNFIT["sampled"][0], "inductive_node"), "node")  # which would learn the labels of test nodes, too
LABELLED = {
    "graph": "each graph",
    "inductive_node": "each node; the public codes stop at their first loss, with fewer predictions than labels",
    "subgraph": "the subgraph around each node (train.sampler node2subgraph)",
    "node": "each node of one graph, of which a split has some",
    "link": "pairs of nodes",
}


def check_head(settings: Any, level: str) -> None:
    """Raise a ConfigError for a head that the labels of the data do not fit, which no public code can train either.

    Args:
        settings (Any): Config with the groups ``gnn`` and ``dataset``.
        level (str): Of the data set, see `DatasetRecord`; "subgraph", of a node; "sampled", of nodes of a split.
    """
    unfit, right = UNFIT.get(level, ((), ""))
    if settings.gnn.head in unfit:
        labelled = LABELLED.get(level, "each node")
        raise ConfigError(
            f"gnn.head: {settings.gnn.head} does not fit {settings.dataset.format} {settings.dataset.name}, which has "
            f"a label for {labelled}: set gnn.head {right} (`default` is what dataset.task says)"
        )
    if settings.gnn.head == "ogb_code_graph" and settings.dataset.task_type != "subtoken_prediction":
        raise ConfigError(
            "gnn.head: ogb_code_graph predicts the words of a name, and dataset.task_type is "
            f"{settings.dataset.task_type}: set it to subtoken_prediction, or take the head graph"
        )
