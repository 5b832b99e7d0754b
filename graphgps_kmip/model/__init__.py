"""Networks from injected parts: feature encoder, GPS layers with message passing and attention branches, head."""

from __future__ import annotations

from graphgps_kmip.model.feature_encoding import FeatureEncoder, input_layers
from graphgps_kmip.model.gps import GPSLayer, GPSModel
from graphgps_kmip.model.graphormer_layer import GraphormerHead, GraphormerLayer
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.model.norms import NORMS
from graphgps_kmip.model.plain_layers import AttentionLayer, GNNLayer, TransformerLayer
from graphgps_kmip.model.prediction_heads import EdgeHead, GraphHead, NodeHead, SequenceHead

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
    "LayerRecipe",
    "NodeHead",
    "SequenceHead",
    "TransformerLayer",
    "input_layers",
]
