"""Encodings of graphs: transforms that run once per graph, and encoder modules that run in the model."""

from __future__ import annotations

from graphgps_kmip.encoding.edge import ConstantEdgeEncoder, LinearEdgeEncoder, TypeDictEdgeEncoder
from graphgps_kmip.encoding.knn import KNNGraph, knn_graph, nearest_neighbors
from graphgps_kmip.encoding.node import LinearNodeEncoder, TypeDictNodeEncoder

__all__ = [
    "ConstantEdgeEncoder",
    "KNNGraph",
    "LinearEdgeEncoder",
    "LinearNodeEncoder",
    "TypeDictEdgeEncoder",
    "TypeDictNodeEncoder",
    "knn_graph",
    "nearest_neighbors",
]
