"""Networks from injected parts: feature encoder, GPS layers with message passing and attention branches, head."""

from __future__ import annotations

from graphgps_kmip.model.feature_encoding import FeatureEncoder, input_layers
from graphgps_kmip.model.gps import GPSLayer, GPSModel
from graphgps_kmip.model.layer_recipe import LayerRecipe
from graphgps_kmip.model.prediction_heads import EdgeHead, GraphHead, NodeHead, SequenceHead
from graphgps_kmip.model.transformer_layers import AttentionLayer, GNNLayer, GraphormerLayer, TransformerLayer

__all__ = [
    "AttentionLayer",
    "EdgeHead",
    "FeatureEncoder",
    "GNNLayer",
    "GPSLayer",
    "GPSModel",
    "GraphHead",
    "GraphormerLayer",
    "LayerRecipe",
    "NodeHead",
    "SequenceHead",
    "TransformerLayer",
    "input_layers",
]
