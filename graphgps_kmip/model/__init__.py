"""Networks made of injected parts: encoder, GPS layers with two branches, head. No config, no GraphGym."""

from __future__ import annotations

from graphgps_kmip.model.edge_head import EdgeHead
from graphgps_kmip.model.features import FeatureEncoder, input_layers
from graphgps_kmip.model.gnn import GNNLayer
from graphgps_kmip.model.gps import GPSLayer, GPSModel
from graphgps_kmip.model.graphormer import GraphormerHead, GraphormerLayer
from graphgps_kmip.model.heads import GraphHead, NodeHead, SequenceHead
from graphgps_kmip.model.norm import NORMS
from graphgps_kmip.model.transformer import AttentionLayer, TransformerLayer

__all__ = [
    "NORMS",
    "AttentionLayer",
    "EdgeHead",
    "FeatureEncoder",
    "GNNLayer",
    "GPSLayer",
    "GPSModel",
    "GraphHead",
    "GraphormerHead",
    "GraphormerLayer",
    "NodeHead",
    "SequenceHead",
    "TransformerLayer",
    "input_layers",
]
