"""Builders of prediction heads, ``(dim_in, dim_out, *, options) -> module``, under their public names."""

from __future__ import annotations

from typing import Annotated, Any

from torch import nn

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import EdgeHead, GraphHead, NodeHead, SequenceHead
from graphgps_kmip.model.prediction_heads import LinearHead, PairHead, san_graph_head
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.ops.row_layers import NORM_LAYERS
from graphgps_kmip.ranges import NATURAL, Choice
from graphgps_kmip.registry import register


@register("head", "graph")
def graph(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP: one prediction per graph."""
    return GraphHead(
        dim_in, dim_out, plan.settings.gnn.layers_post_mp, plan.settings.model.graph_pooling, **_hidden(plan)
    )


@register("head", "mlp_graph")
def mlp_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """As graph, with dropout before each layer of the MLP: also on the pooled nodes."""
    layers, pooling = plan.settings.gnn.layers_post_mp, plan.settings.model.graph_pooling
    return GraphHead(dim_in, dim_out, layers, pooling, plan.settings.gnn.dropout, plan.activation(), input_dropout=True)


@register("head", "san_graph")
def san_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP that halves the width twice: one prediction per graph.

    Its activation is that of the layers: some public codes have a ReLU in both whatever gnn.act says.
    """
    return san_graph_head(dim_in, dim_out, plan.settings.model.graph_pooling, act=plan.layer_activation())


@register("head", "ogb_code_graph")
def ogb_code_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then one linear map for each of the 5 words of a name."""
    return SequenceHead(dim_in, dim_out, pooling=plan.settings.model.graph_pooling)


@register("head", "graphormer_graph")
def graphormer_graph(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """LayerNorm of the nodes, pool them (model.graph_pooling), then one linear map: one prediction per graph."""
    return GraphHead(dim_in, dim_out, pooling=plan.settings.model.graph_pooling, node_norm=True)


@register("head", "linear_graph", aliases=("linear_graph_nodecay",))
def linear_graph(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """Pool the nodes (model.graph_pooling, also cls_token), norm, dropout, an MLP that keeps the width: PPGT's.

    ``halve_widths`` halves the width of each hidden layer; ``out_bn`` normalises the outputs over the batch; there are
    ``out_dim`` of them, 0: as many as the data asks for.
    """
    pooling = plan.settings.model.graph_pooling
    return _build_linear(plan, dim_in, out_dim or dim_out, pooling, post_pooling_norm, halve_widths, out_bn)


@register("head", "linear_node", aliases=("linear_node_nodecay",))
def linear_node(
    dim_in: int,
    dim_out: int,
    *,
    plan: NetworkPlan,
    halve_widths: bool = False,
    post_pooling_norm: Annotated[str, Choice(tuple(NORM_LAYERS))] = "none",
    out_bn: bool = False,
    out_dim: Annotated[int, NATURAL] = 0,
) -> nn.Module:
    """As linear_graph, without pooling: predictions of all nodes, or of those of the split at hand.

    The norms, ``post_pooling_norm`` before the MLP and ``out_bn`` of its outputs, are those of nodes.
    """
    return _build_linear(plan, dim_in, out_dim or dim_out, None, post_pooling_norm, halve_widths, out_bn)


def _build_linear(
    plan: NetworkPlan, dim: int, dim_out: int, pooling: str | None, norm: str, halve_widths: bool, out_bn: bool
) -> nn.Module:
    gnn, options = plan.settings.gnn, {"norm": norm, "halve_widths": halve_widths, "out_bn": out_bn}
    return LinearHead(dim, dim_out, gnn.layers_post_mp, pooling, gnn.dropout, plan.activation(), **options)


@register("head", "node")
def node(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """MLP on the nodes of the split at hand: one graph, divided by masks (transductive)."""
    return NodeHead(dim_in, dim_out, plan.settings.gnn.layers_post_mp, masked=True, **_hidden(plan))


@register("head", "inductive_node")
def inductive_node(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:
    """MLP on all nodes of every graph: whole graphs are divided (inductive)."""
    return NodeHead(dim_in, dim_out, plan.settings.gnn.layers_post_mp, **_hidden(plan))


@register("head", "inductive_edge")
def inductive_edge(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001 (a pair has one logit)
    """Logits of labelled pairs of nodes (model.edge_decoding) and ranks within their graph: many graphs."""
    return _edge(plan, dim_in, ranked=True)


@register("head", "link_pred", aliases=("edge",))  # GraphGym has both names for one head
def link_pred(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001 (a pair has one logit)
    """Logits of labelled pairs of nodes (model.edge_decoding), without ranks: also for one large graph."""
    return _edge(plan, dim_in, ranked=False)


def _edge(plan: NetworkPlan, dim: int, ranked: bool) -> nn.Module:
    return EdgeHead(
        dim, plan.settings.gnn.layers_post_mp, plan.settings.model.edge_decoding, ranked=ranked, **_hidden(plan)
    )


def _hidden(plan: NetworkPlan) -> dict[str, Any]:
    """Return what the hidden layers of a head are made of.

    GraphGym's have a ReLU and no dropout, whatever the config says, and rows of length 1. So are those of all public
    codes but of mlp_graph: ``gnn.l2norm`` True, and always in GraphGym's own network.
    """
    if plan.settings.model.type == "gnn" or plan.settings.gnn.l2norm:
        return {"dropout": 0.0, "act": nn.ReLU, "l2norm": True}
    return {"dropout": plan.settings.gnn.dropout, "act": plan.activation()}


@register("head", "infer_links")
def infer_links(dim_in: int, dim_out: int, *, plan: NetworkPlan) -> nn.Module:  # noqa: ARG001 (a pair has two logits)
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
UNFIT["node"] = ((*UNFIT["sampled"][0], "inductive_node"), "node")  # which would learn the labels of test nodes, too
LABELLED = {
    "graph": "each graph",
    "inductive_node": "each node; the public codes stop at their first loss, with fewer predictions than labels",
    "subgraph": "the subgraph around each node (train.sampler node2subgraph)",
    "node": "each node of one graph, of which a split has some",
}


def check_head(settings: Any, level: str) -> None:
    """Refuse a head that predicts for graphs where nodes have labels, the other way round, or words where none are.

    Args:
        settings (Any): Config with the groups ``gnn`` and ``dataset``.
        level (str): Of the data set, see `DatasetRecord`; "subgraph" where each node has one, which has its label;
            "sampled" where batches hold the labels of a split's nodes alone.

    Raises:
        ConfigError: it cannot be trained, in the public codes neither.
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
