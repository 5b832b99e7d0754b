"""Prediction heads: functions ``(dim_in, dim_out)`` to a module, under their public names."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym import register
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.gym.errors import look_up
from graphgps_kmip.model import GraphHead, NodeHead


def graph(dim_in: int, dim_out: int) -> nn.Module:
    """Pool the nodes (model.graph_pooling), then an MLP: one prediction per graph."""
    return GraphHead(dim_in, dim_out, cfg.gnn.layers_post_mp, cfg.model.graph_pooling, cfg.gnn.dropout, _act())


def node(dim_in: int, dim_out: int) -> nn.Module:
    """MLP on the nodes of the split at hand: one graph, divided by masks (transductive)."""
    return NodeHead(dim_in, dim_out, cfg.gnn.layers_post_mp, cfg.gnn.dropout, _act(), masked=True)


def inductive_node(dim_in: int, dim_out: int) -> nn.Module:
    """MLP on all nodes of every graph: whole graphs are divided (inductive)."""
    return NodeHead(dim_in, dim_out, cfg.gnn.layers_post_mp, cfg.gnn.dropout, _act())


def _act() -> Callable[[], nn.Module]:
    return look_up(register.act_dict, cfg.gnn.act, "gnn.act")


HEADS: dict[str, Callable[[int, int], nn.Module]] = {
    "graph": graph,
    "node": node,
    "inductive_node": inductive_node,
}
