"""Prediction heads: functions ``(dim_in, dim_out)`` to a module, under their public names."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.errors import ConfigError
from graphgps_kmip.model import EdgeHead, GraphHead, GraphormerHead, NodeHead, SequenceHead
from graphgps_kmip.model.prediction_heads import PairHead
from graphgps_kmip.model.san_layer import san_graph_head
from graphgps_kmip.networks.activations import activation, layer_activation
from graphgps_kmip.registry import register


@register("head", "graph")
def graph(dim_in: int, dim_out: int) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP: one prediction per graph."""
    return GraphHead(dim_in, dim_out, cfg.gnn.layers_post_mp, cfg.model.graph_pooling, **_hidden())


@register("head", "mlp_graph")
def mlp_graph(dim_in: int, dim_out: int) -> nn.Module:
    """As graph, with dropout before each layer of the MLP: also on the pooled nodes."""
    layers, pooling = cfg.gnn.layers_post_mp, cfg.model.graph_pooling
    return GraphHead(dim_in, dim_out, layers, pooling, cfg.gnn.dropout, activation(), input_dropout=True)


@register("head", "san_graph")
def san_graph(dim_in: int, dim_out: int) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP that halves the width twice: one prediction per graph.

    Its activation is that of the layers: some public codes have a ReLU in both whatever gnn.act says.
    """
    return san_graph_head(dim_in, dim_out, cfg.model.graph_pooling, act=layer_activation())


@register("head", "ogb_code_graph")
def ogb_code_graph(dim_in: int, dim_out: int) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then one linear map for each of the 5 words of a name."""
    return SequenceHead(dim_in, dim_out, pooling=cfg.model.graph_pooling)


@register("head", "graphormer_graph")
def graphormer_graph(dim_in: int, dim_out: int) -> nn.Module:
    """LayerNorm of the nodes, pool them (model.graph_pooling), then one linear map: one prediction per graph."""
    return GraphormerHead(dim_in, dim_out, cfg.model.graph_pooling)


@register("head", "node")
def node(dim_in: int, dim_out: int) -> nn.Module:
    """MLP on the nodes of the split at hand: one graph, divided by masks (transductive)."""
    return NodeHead(dim_in, dim_out, cfg.gnn.layers_post_mp, masked=True, **_hidden())


@register("head", "inductive_node")
def inductive_node(dim_in: int, dim_out: int) -> nn.Module:
    """MLP on all nodes of every graph: whole graphs are divided (inductive)."""
    return NodeHead(dim_in, dim_out, cfg.gnn.layers_post_mp, **_hidden())


@register("head", "inductive_edge")
def inductive_edge(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (a pair has one logit)
    """Logits of labelled pairs of nodes (model.edge_decoding) and ranks within their graph: many graphs."""
    return _edge(dim_in, ranked=True)


@register("head", "link_pred", aliases=("edge",))  # GraphGym has both names for one head
def link_pred(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (a pair has one logit)
    """Logits of labelled pairs of nodes (model.edge_decoding), without ranks: also for one large graph."""
    return _edge(dim_in, ranked=False)


def _edge(dim: int, ranked: bool) -> nn.Module:
    return EdgeHead(dim, cfg.gnn.layers_post_mp, cfg.model.edge_decoding, ranked=ranked, **_hidden())


def _hidden() -> dict[str, Any]:
    """Return what the hidden layers of a head are made of.

    GraphGym's have a ReLU and no dropout, whatever the config says, and rows of length 1. So are those of all public
    codes but of mlp_graph: ``gnn.l2norm`` True, and always in GraphGym's own network.
    """
    if cfg.model.type == "gnn" or cfg.gnn.l2norm:
        return {"dropout": 0.0, "act": nn.ReLU, "l2norm": True}
    return {"dropout": cfg.gnn.dropout, "act": activation()}


@register("head", "infer_links")
def infer_links(dim_in: int, dim_out: int) -> nn.Module:  # noqa: ARG001 (a pair has two logits)
    """Logits of all pairs of nodes: is there an edge (dataset.infer_link_label edge)."""
    if cfg.dataset.infer_link_label != "edge":
        raise ConfigError(f"dataset.infer_link_label: infer_links knows edge only, got {cfg.dataset.infer_link_label}")
    return PairHead()


# What has a label -> heads that predict something else, with what fits.
UNFIT: dict[str, tuple[tuple[str, ...], str]] = {
    "graph": (("node", "inductive_node", "inductive_edge", "link_pred", "edge"), "graph"),
    "inductive_node": (("graph", "mlp_graph", "san_graph", "graphormer_graph"), "inductive_node"),
    "node": (("graph", "mlp_graph", "san_graph", "graphormer_graph"), "node"),
}


def check_head(level: str) -> None:
    """Refuse a head that predicts for graphs where nodes have labels, the other way round, or words where none are.

    Args:
        level: of the data set, see `DatasetRecord`.

    Raises:
        ConfigError: it cannot be trained, in the public codes neither.
    """
    unfit, right = UNFIT.get(level, ((), ""))
    if cfg.gnn.head in unfit:
        labelled = "each graph" if level == "graph" else "each node"
        raise ConfigError(
            f"gnn.head: {cfg.gnn.head} does not fit {cfg.dataset.format} {cfg.dataset.name}, which has a label for "
            f"{labelled}: set gnn.head {right} (`default` is what dataset.task says)"
        )
    if cfg.gnn.head == "ogb_code_graph" and cfg.dataset.task_type != "subtoken_prediction":
        raise ConfigError(
            f"gnn.head: ogb_code_graph predicts the words of a name, and dataset.task_type is {cfg.dataset.task_type}: "
            "set it to subtoken_prediction, or take the head graph"
        )
