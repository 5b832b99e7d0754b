"""Encodings and input encoders: what is precomputed for each graph, and the modules that read it in a model."""

from __future__ import annotations

from graphgps_kmip.encoding.coco_voc_superpixels import SuperpixelEdgeEncoder, SuperpixelNodeEncoder
from graphgps_kmip.encoding.degree import LDP, Degree
from graphgps_kmip.encoding.expander_graph import Expander
from graphgps_kmip.encoding.feature_encoders import (
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
from graphgps_kmip.encoding.graphormer_bias import GraphormerBias
from graphgps_kmip.encoding.heat_kernel import ElstaticSE, HKdiagSE
from graphgps_kmip.encoding.knn import KNNGraph, knn_graph, nearest_neighbors
from graphgps_kmip.encoding.laplacian import EquivStableLapPE, LapPE, SignNet
from graphgps_kmip.encoding.positional_encoding import AddEncoding, EdgeEncoding, NodeEncoding, PositionalEncoding
from graphgps_kmip.encoding.random_walk import RWSE, RWSEEdge
from graphgps_kmip.encoding.resistance import ERE, ERN
from graphgps_kmip.encoding.rrwp import RRWP
from graphgps_kmip.encoding.truncated_svd import SVD

__all__ = [
    "ERE",
    "ERN",
    "LDP",
    "RRWP",
    "RWSE",
    "SVD",
    "AddEncoding",
    "AtomEncoder",
    "BondEncoder",
    "ConstantEdgeEncoder",
    "ConstantNodeEncoder",
    "Degree",
    "EdgeEncoding",
    "ElstaticSE",
    "EquivStableLapPE",
    "Expander",
    "GraphormerBias",
    "HKdiagSE",
    "KNNGraph",
    "LapPE",
    "LinearEdgeEncoder",
    "LinearNodeEncoder",
    "NodeEncoding",
    "PositionalEncoding",
    "RWSEEdge",
    "SignNet",
    "SuperpixelEdgeEncoder",
    "SuperpixelNodeEncoder",
    "SyntaxEdgeEncoder",
    "SyntaxNodeEncoder",
    "TypeDictEdgeEncoder",
    "TypeDictNodeEncoder",
    "knn_graph",
    "nearest_neighbors",
]
