"""Node and edge encoders: functions from the width to a module, under their public names."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.encoding.edge import ConstantEdgeEncoder, LinearEdgeEncoder, TypeDictEdgeEncoder
from graphgps_kmip.encoding.node import LinearNodeEncoder, TypeDictNodeEncoder


def linear_node(dim: int) -> nn.Module:
    """Linear map of the node features."""
    return LinearNodeEncoder(cfg.share.dim_in, dim)


def type_dict_node(dim: int) -> nn.Module:
    """Embedding of an integer node type; dataset.node_encoder_num_types of them."""
    return TypeDictNodeEncoder(cfg.dataset.node_encoder_num_types, dim)


def linear_edge(dim: int) -> nn.Module:
    """Linear map of the edge features."""
    return LinearEdgeEncoder(cfg.dataset.edge_dim, dim)


def type_dict_edge(dim: int) -> nn.Module:
    """Embedding of an integer edge type; dataset.edge_encoder_num_types of them."""
    return TypeDictEdgeEncoder(cfg.dataset.edge_encoder_num_types, dim)


def dummy_edge(dim: int) -> nn.Module:
    """One learned vector for every edge, for graphs without edge features."""
    return ConstantEdgeEncoder(dim)


NODE_ENCODERS: dict[str, Callable[[int], nn.Module]] = {
    "LinearNode": linear_node,
    "TypeDictNode": type_dict_node,
}
EDGE_ENCODERS: dict[str, Callable[[int], nn.Module]] = {
    "LinearEdge": linear_edge,
    "TypeDictEdge": type_dict_edge,
    "DummyEdge": dummy_edge,
}
