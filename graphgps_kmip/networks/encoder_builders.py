"""Node and edge encoders: functions from the width to a module, under their public names.

A node encoder's name may join parts by plus, as in GraphGPS: ``Atom+LapPE+RWSE`` is an encoder of the data's own
features and two encodings, for whose widths ``dim_pe`` it leaves room; ``RWSE`` alone maps the raw features linearly.
The same holds for edges: ``Bond+RWSEEdge``, or ``ERE`` alone.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch_geometric.graphgym import register as graphgym
from torch_geometric.graphgym.config import cfg

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.data.ogb_processing import ATOM, BOND
from graphgps_kmip.encoding.feature_encoders import (
    ConstantEdgeEncoder,
    ConstantNodeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)
from graphgps_kmip.encoding.molecule import AtomEncoder, BondEncoder
from graphgps_kmip.encoding.superpixel import (
    COCO_EDGE,
    COCO_NODE,
    VOC_EDGE,
    VOC_NODE,
    Scale,
    SuperpixelEdgeEncoder,
    SuperpixelNodeEncoder,
)
from graphgps_kmip.encoding.syntax import SyntaxEdgeEncoder, SyntaxNodeEncoder
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.gym.posenc import EDGE_PARTS, NODE_PARTS, PosEnc
from graphgps_kmip.registry import register


# The columns of CityNetwork are made when the data is loaded.
@register("node_encoder", "LinearNode", aliases=("CityNetworkNode",))
def linear_node(dim: int) -> nn.Module:
    """Linear map of the node features."""
    return LinearNodeEncoder(cfg.share.dim_in, dim)


@register("node_encoder", "TypeDictNode")
def type_dict_node(dim: int) -> nn.Module:
    """Embedding of an integer node type; dataset.node_encoder_num_types of them."""
    return TypeDictNodeEncoder(cfg.dataset.node_encoder_num_types, dim)


@register("node_encoder", "PPANode")
def constant_node(dim: int) -> nn.Module:
    """One learned vector for every node, for graphs without node features."""
    return ConstantNodeEncoder(dim)


@register("node_encoder", "Atom")
def atom(dim: int) -> nn.Module:
    """Sum of the embeddings of ogb's 9 atom features."""
    return AtomEncoder(ATOM, dim)


@register("node_encoder", "ASTNode")
def ast_node(dim: int) -> nn.Module:
    """Sum of the embeddings of type, attribute and depth in a syntax tree."""
    return SyntaxNodeEncoder(dim)


@register("node_encoder", "VOCNode")
def voc_node(dim: int) -> nn.Module:
    """Linear map of PascalVOC-SP's 14 node features, standardised."""
    return SuperpixelNodeEncoder(VOC_NODE, dim)


@register("node_encoder", "COCONode")
def coco_node(dim: int) -> nn.Module:
    """Linear map of COCO-SP's 14 node features, standardised."""
    return SuperpixelNodeEncoder(COCO_NODE, dim)


@register("edge_encoder", "LinearEdge", aliases=("PPAEdge",))
def linear_edge(dim: int) -> nn.Module:
    """Linear map of the edge features."""
    return LinearEdgeEncoder(cfg.dataset.edge_dim, dim)


@register("edge_encoder", "TypeDictEdge")
def type_dict_edge(dim: int) -> nn.Module:
    """Embedding of an integer edge type; dataset.edge_encoder_num_types of them."""
    return TypeDictEdgeEncoder(cfg.dataset.edge_encoder_num_types, dim)


@register("edge_encoder", "DummyEdge")
def dummy_edge(dim: int) -> nn.Module:
    """One learned vector for every edge, for graphs without edge features."""
    return ConstantEdgeEncoder(dim)


@register("edge_encoder", "Bond")
def bond(dim: int) -> nn.Module:
    """Sum of the embeddings of ogb's 3 bond features."""
    return BondEncoder(BOND, dim)


@register("edge_encoder", "ASTEdge")
def ast_edge(dim: int) -> nn.Module:
    """Sum of the embeddings of type and direction of an edge in a syntax tree."""
    return SyntaxEdgeEncoder(dim)


@register("edge_encoder", "VOCEdge")
def voc_edge(dim: int) -> nn.Module:
    """Linear map of PascalVOC-SP's edge features, standardised where there are 2 (edge_wt_region_boundary)."""
    return _superpixel_edge(VOC_EDGE, dim)


@register("edge_encoder", "COCOEdge")
def coco_edge(dim: int) -> nn.Module:
    """Linear map of COCO-SP's edge features, standardised where there are 2 (edge_wt_region_boundary)."""
    return _superpixel_edge(COCO_EDGE, dim)


def _superpixel_edge(scale: Scale, dim: int) -> nn.Module:
    if cfg.dataset.edge_dim == 1:  # the other two kinds of superpixel graphs, for which no constants are published
        return LinearEdgeEncoder(1, dim)
    return SuperpixelEdgeEncoder(scale, dim)


def node_encoder(name: str, dim: int) -> nn.Module:
    """Return the node encoder of a name.

    Args:
        name: value of ``dataset.node_encoder_name``.
        dim: width C.

    Raises:
        ConfigError: an unknown part, or no width left for the features.
    """
    key = "dataset.node_encoder_name"
    if name in graphgym.node_encoder_dict:
        return graphgym.node_encoder_dict[name](dim)
    first, *rest = name.split("+")
    if first in NODE_PARTS and not rest:
        return NODE_PARTS[first].encoder(dim, cfg.share.dim_in)
    features = look_up(graphgym.node_encoder_dict, first, key)
    return _composed(features, [look_up(NODE_PARTS, part, key) for part in rest], dim, f"{key}: {name}")


def edge_encoder(name: str, dim: int) -> nn.Module:
    """Return the edge encoder of a name.

    An encoding alone stands beside a linear map of the edge features, or one learned vector where there are none.

    Args:
        name: value of ``dataset.edge_encoder_name``.
        dim: width C.

    Raises:
        ConfigError: an unknown part, or no width left for the features.
    """
    key = "dataset.edge_encoder_name"
    if name in graphgym.edge_encoder_dict:
        return graphgym.edge_encoder_dict[name](dim)
    first, *rest = name.split("+")
    if first in EDGE_PARTS and not rest:
        first, rest = "LinearEdge" if cfg.dataset.edge_dim else "DummyEdge", [first]
    features = look_up(graphgym.edge_encoder_dict, first, key)
    return _composed(features, [look_up(EDGE_PARTS, part, key) for part in rest], dim, f"{key}: {name}")


def _composed(features: Callable[[int], nn.Module], rows: list[PosEnc], dim: int, where: str) -> nn.Module:
    width = dim - sum(row.width for row in rows)
    if width < 1:
        raise ConfigError(f"{where}: its encodings take {dim - width} of {dim} columns: lower their dim_pe")
    modules = [features(width)]
    for row in rows:
        width += row.width
        modules.append(row.encoder(width, None))
    return nn.Sequential(*modules)
