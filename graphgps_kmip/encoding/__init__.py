"""Encodings of graphs: transforms that run once per graph, and encoder modules that run in the model."""

from __future__ import annotations

from graphgps_kmip.encoding.coco_voc_superpixels import SuperpixelEdgeEncoder, SuperpixelNodeEncoder
from graphgps_kmip.encoding.feature_encoders import (
    ConstantEdgeEncoder,
    ConstantNodeEncoder,
    LinearEdgeEncoder,
    LinearNodeEncoder,
    TypeDictEdgeEncoder,
    TypeDictNodeEncoder,
)
from graphgps_kmip.encoding.knn import KNNGraph, knn_graph, nearest_neighbors
from graphgps_kmip.encoding.molecule import AtomEncoder, BondEncoder
from graphgps_kmip.encoding.syntax import SyntaxEdgeEncoder, SyntaxNodeEncoder

__all__ = [
    "AtomEncoder",
    "BondEncoder",
    "ConstantEdgeEncoder",
    "ConstantNodeEncoder",
    "KNNGraph",
    "LinearEdgeEncoder",
    "LinearNodeEncoder",
    "SuperpixelEdgeEncoder",
    "SuperpixelNodeEncoder",
    "SyntaxEdgeEncoder",
    "SyntaxNodeEncoder",
    "TypeDictEdgeEncoder",
    "TypeDictNodeEncoder",
    "knn_graph",
    "nearest_neighbors",
]
