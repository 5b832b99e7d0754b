"""Node and edge encoders: functions from the width to a module, under their public names.

A node encoder's name may join parts by plus, as in GraphGPS: ``Atom+LapPE+RWSE`` is an encoder of the data's own
features and two encodings, for whose widths ``dim_pe`` it leaves room; ``RWSE`` alone maps the raw features linearly.
The same holds for edges: ``Bond+RWSEEdge``, or ``ERE`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.encoding.coco_voc_superpixels import (
    COCO_EDGE,
    COCO_NODE,
    VOC_EDGE,
    VOC_NODE,
    Scale,
    SuperpixelEdgeEncoder,
    SuperpixelNodeEncoder,
)
from graphgps_kmip.encoding.feature_encoders import (
    ATOM,
    BOND,
    AtomEncoder,
    BondEncoder,
    ConstantEdgeEncoder,
    ConstantNodeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    SyntaxEdgeEncoder,
    SyntaxNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)
from graphgps_kmip.encoding.positional_encoding import PositionalEncoding, encoding_parts, from_settings
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.network_plan import NetworkPlan
from graphgps_kmip.registry import Spec, named, register


# The columns of CityNetwork are made when the data is loaded.
@register("node_encoder", "LinearNode", aliases=("CityNetworkNode",))
def linear_node(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Linear map of the node features."""
    return LinearNodeEncoder(plan.dim_in, dim)


@register("node_encoder", "TypeDictNode")
def type_dict_node(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Embedding of an integer node type; dataset.node_encoder_num_types of them."""
    return TypeDictNodeEncoder(plan.settings.dataset.node_encoder_num_types, dim)


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
def linear_edge(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Linear map of the edge features."""
    return LinearEdgeEncoder(plan.edge_dim, dim)


@register("edge_encoder", "TypeDictEdge")
def type_dict_edge(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Embedding of an integer edge type; dataset.edge_encoder_num_types of them."""
    return TypeDictEdgeEncoder(plan.settings.dataset.edge_encoder_num_types, dim)


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
def voc_edge(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Linear map of PascalVOC-SP's edge features, standardised where there are 2 (edge_wt_region_boundary)."""
    return _superpixel_edge(plan, VOC_EDGE, dim)


@register("edge_encoder", "COCOEdge")
def coco_edge(dim: int, *, plan: NetworkPlan) -> nn.Module:
    """Linear map of COCO-SP's edge features, standardised where there are 2 (edge_wt_region_boundary)."""
    return _superpixel_edge(plan, COCO_EDGE, dim)


def _superpixel_edge(plan: NetworkPlan, scale: Scale, dim: int) -> nn.Module:
    if plan.edge_dim == 1:  # the other two kinds of superpixel graphs, for which no constants are published
        return LinearEdgeEncoder(1, dim)
    return SuperpixelEdgeEncoder(scale, dim)


MOST_ENCODINGS = 3  # in one of the `composed_names`, as in GraphGPS


def composed_names(kind: str) -> list[str]:
    """Return the names that encodings alone, and an encoder with one to three of them in any order have.

    Args:
        kind (str): "node_encoder" or "edge_encoder".
    """
    parts = encoding_parts(on_edges=kind == "edge_encoder")
    joined = ["+".join(some) for count in range(1, MOST_ENCODINGS + 1) for some in permutations(parts, count)]
    return [*parts, *(f"{first}+{rest}" for first in named(kind) for rest in joined)]


def node_encoder(plan: NetworkPlan, name: str, dim: int) -> nn.Module:
    """Return the node encoder of a name.

    Args:
        plan (NetworkPlan): Settings and dims.
        name (str): Value of ``dataset.node_encoder_name``.
        dim (int): Width C.

    Raises:
        ConfigError: an unknown part, or no width left for the features.
    """
    key, parts = "dataset.node_encoder_name", encoding_parts()
    first, *rest = name.split("+")
    if name in named("node_encoder") or _is_of_others(plan, "node_encoder", name, parts):
        return _features(plan, "node_encoder", name, dim)
    if first in parts and not rest:
        return _encoding(plan, parts[first]).encoder(dim, plan.dim_in)
    look_up(_known(plan, "node_encoder"), first, key)
    return _composed(plan, "node_encoder", first, [look_up(parts, part, key) for part in rest], dim, f"{key}: {name}")


def edge_encoder(plan: NetworkPlan, name: str, dim: int) -> nn.Module:
    """Return the edge encoder of a name.

    An encoding alone stands beside a linear map of the edge features, or one learned vector where there are none.

    Args:
        plan (NetworkPlan): Settings and dims.
        name (str): Value of ``dataset.edge_encoder_name``.
        dim (int): Width C.

    Raises:
        ConfigError: an unknown part, or no width left for the features.
    """
    key, parts = "dataset.edge_encoder_name", encoding_parts(on_edges=True)
    first, *rest = name.split("+")
    if name in named("edge_encoder") or _is_of_others(plan, "edge_encoder", name, parts):
        return _features(plan, "edge_encoder", name, dim)
    if first in parts and not rest:
        first, rest = "LinearEdge" if plan.edge_dim else "DummyEdge", [first]
    look_up(_known(plan, "edge_encoder"), first, key)
    return _composed(plan, "edge_encoder", first, [look_up(parts, part, key) for part in rest], dim, f"{key}: {name}")


def _encoding(plan: NetworkPlan, spec: Spec) -> PositionalEncoding:
    return from_settings(spec.component, spec.name, plan.settings)


def _known(plan: NetworkPlan, kind: str) -> dict[str, Any]:
    return dict(plan.others.get(kind, {})) | named(kind)


def _is_of_others(plan: NetworkPlan, kind: str, name: str, parts: Mapping[str, Spec]) -> bool:
    """Return whether only another package has an encoder; GraphGPS registers composed names whose parts we have."""
    first, *rest = name.split("+")
    composed = first in (named(kind) | parts) and all(part in parts for part in rest)
    return name in plan.others.get(kind, {}) and not composed


def _features(plan: NetworkPlan, kind: str, name: str, dim: int) -> nn.Module:
    """Return the encoder of the data's own features."""
    entry = _known(plan, kind)[name]
    if not isinstance(entry, Spec):  # of another package, in GraphGym's form
        return entry(dim)
    return build_encoder(plan, entry, dim)


def build_encoder(plan: NetworkPlan, spec: Spec, dim: int) -> nn.Module:
    """Return an encoder of nodes or of edges, whose options come from the settings and the data."""
    types = plan.settings.dataset[f"{spec.kind}_num_types"]
    return plan.build(spec, dim, dim_in=plan.dim_in, edge_dim=plan.edge_dim, num_types=types)


def _composed(plan: NetworkPlan, kind: str, first: str, specs: list[Spec], dim: int, where: str) -> nn.Module:
    encodings = [_encoding(plan, spec) for spec in specs]
    width = dim - sum(encoding.width for encoding in encodings)
    if width < (kind == "edge_encoder"):  # in GraphGPS encodings of nodes may take all columns
        raise ConfigError(f"{where}: its encodings take {dim - width} of {dim} columns: lower their dim_pe")
    modules = [_features(plan, kind, first, width)]
    for encoding in encodings:
        width += encoding.width
        modules.append(encoding.encoder(width, None))
    return nn.Sequential(*modules)
