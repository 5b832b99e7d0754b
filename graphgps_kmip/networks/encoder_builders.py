"""Node and edge encoders: functions from the width to a module, under their public names.

As in GraphGPS, ``Atom+LapPE+RWSE`` is an encoder of the data's features and two encodings, for whose widths ``dim_pe``
it leaves room; ``RWSE`` alone maps the raw features linearly. Of edges: ``Bond+RWSEEdge``, or ``ERE``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

from torch import nn

from graphgps_kmip.common.near_misses import look_up
from graphgps_kmip.encoding import coco_voc_superpixels as superpixels
from graphgps_kmip.encoding import feature_encoders as features
from graphgps_kmip.encoding.positional_encoding import encoding_parts, from_settings
from graphgps_kmip.errors import ConfigError
from graphgps_kmip.networks.network_settings import NetworkPlan
from graphgps_kmip.registry import Spec, named, register


def superpixel_edge_encoder(scale: superpixels.Scale, edge_dim: int, dim: int) -> nn.Module:
    """Return the encoder of superpixel edges: no scale is published for those of one number."""
    if edge_dim == 1:
        return features.LinearEdgeEncoder(1, dim)
    return superpixels.SuperpixelEdgeEncoder(scale, dim)


NODE_ENCODERS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "LinearNode": (lambda dim, *, dim_in: features.LinearNodeEncoder(dim_in, dim), "Linear map of the node features."),
    "TypeDictNode": (
        lambda dim, *, num_types: features.TypeDictNodeEncoder(num_types, dim),
        "Embedding of an integer node type; dataset.node_encoder_num_types of them.",
    ),
    "PPANode": (
        lambda dim: features.ConstantNodeEncoder(dim),
        "One learned vector for every node, for graphs without node features.",
    ),
    "Atom": (lambda dim: features.AtomEncoder(features.ATOM, dim), "Sum of the embeddings of ogb's 9 atom features."),
    "ASTNode": (
        lambda dim: features.SyntaxNodeEncoder(dim),
        "Sum of the embeddings of type, attribute and depth in a syntax tree.",
    ),
    "VOCNode": (
        lambda dim: superpixels.SuperpixelNodeEncoder(superpixels.VOC_NODE, dim),
        "Linear map of PascalVOC-SP's 14 node features, standardised.",
    ),
    "COCONode": (
        lambda dim: superpixels.SuperpixelNodeEncoder(superpixels.COCO_NODE, dim),
        "Linear map of COCO-SP's 14 node features, standardised.",
    ),
}
EDGE_ENCODERS: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "LinearEdge": (
        lambda dim, *, edge_dim: features.LinearEdgeEncoder(edge_dim, dim),
        "Linear map of the edge features.",
    ),
    "TypeDictEdge": (
        lambda dim, *, num_types: features.TypeDictEdgeEncoder(num_types, dim),
        "Embedding of an integer edge type; dataset.edge_encoder_num_types of them.",
    ),
    "DummyEdge": (
        lambda dim: features.ConstantEdgeEncoder(dim),
        "One learned vector for every edge, for graphs without edge features.",
    ),
    "Bond": (lambda dim: features.BondEncoder(features.BOND, dim), "Sum of the embeddings of ogb's 3 bond features."),
    "ASTEdge": (
        lambda dim: features.SyntaxEdgeEncoder(dim),
        "Sum of the embeddings of type and direction of an edge in a syntax tree.",
    ),
    "VOCEdge": (
        lambda dim, *, edge_dim: superpixel_edge_encoder(superpixels.VOC_EDGE, edge_dim, dim),
        "Linear map of PascalVOC-SP's edge features, standardised where there are 2 (edge_wt_region_boundary).",
    ),
    "COCOEdge": (
        lambda dim, *, edge_dim: superpixel_edge_encoder(superpixels.COCO_EDGE, edge_dim, dim),
        "Linear map of COCO-SP's edge features, standardised where there are 2 (edge_wt_region_boundary).",
    ),
}
ALIASES = {"LinearNode": ("CityNetworkNode",), "LinearEdge": ("PPAEdge",)}  # CityNetwork's columns: made when loaded
for _kind, _table in (("node_encoder", NODE_ENCODERS), ("edge_encoder", EDGE_ENCODERS)):
    for _name, (_build, _summary) in _table.items():
        _build.__name__ = _name
        register(_kind, _name, _build, aliases=ALIASES.get(_name, ()), summary=_summary)

MAX_ENCODINGS = 3  # in one of the `composed_names`, as in GraphGPS


def composed_names(kind: str) -> list[str]:
    """Return the names of encodings (of a kind of encoder) alone, and of an encoder with one to three of them."""
    parts = encoding_parts(on_edges=kind == "edge_encoder")
    joined = ["+".join(names) for count in range(1, MAX_ENCODINGS + 1) for names in permutations(parts, count)]
    return [*parts, *(f"{first}+{rest}" for first in named(kind) for rest in joined)]


def build_named_encoder(plan: NetworkPlan, name: str, dim: int, *, kind: str) -> nn.Module:
    """Return the encoder of a name that may join parts; kind is "node_encoder" or "edge_encoder".

    An encoding of edges alone comes with a linear map of the edge features, or one learned vector if there are none.
    """
    key, on_edges = f"dataset.{kind}_name", kind == "edge_encoder"
    parts, others = encoding_parts(on_edges), plan.others.get(kind, {})
    first, *rest = name.split("+")
    composed = first in (named(kind) | parts) and all(part in parts for part in rest)
    if name in named(kind) or (name in others and not composed):  # GraphGPS registers names whose parts we have
        return _build_features(plan, kind, name, dim)
    if first in parts and not rest:
        if not on_edges:
            return from_settings(parts[first].component, parts[first].name, plan.settings).encoder(dim, plan.dim_in)
        first, rest = "LinearEdge" if plan.edge_dim else "DummyEdge", [first]
    look_up(dict(others) | named(kind), first, key)
    specs = [look_up(parts, part, key) for part in rest]
    encodings = [from_settings(spec.component, spec.name, plan.settings) for spec in specs]
    width = dim - sum(encoding.width for encoding in encodings)
    if width < on_edges:  # in GraphGPS encodings of nodes may take all columns
        raise ConfigError(f"{key}: {name}: its encodings take {dim - width} of {dim} columns: lower their dim_pe")
    modules = [_build_features(plan, kind, first, width)]
    for encoding in encodings:
        width += encoding.width
        modules.append(encoding.encoder(width, None))
    return nn.Sequential(*modules)


node_encoder = partial(build_named_encoder, kind="node_encoder")
edge_encoder = partial(build_named_encoder, kind="edge_encoder")


def _build_features(plan: NetworkPlan, kind: str, name: str, dim: int) -> nn.Module:
    entry: Any = named(kind).get(name)
    return plan.others[kind][name](dim) if entry is None else build_encoder(plan, entry, dim)


def build_encoder(plan: NetworkPlan, spec: Spec, dim: int) -> nn.Module:
    """Return an encoder of nodes or of edges, whose options come from the settings and the data."""
    types = plan.settings.dataset[f"{spec.kind}_num_types"]
    return plan.build(spec, dim, dim_in=plan.dim_in, edge_dim=plan.edge_dim, num_types=types)
