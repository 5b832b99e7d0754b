"""Encodings and input encoders: what is precomputed for each graph, and the modules that read it in a model."""

from __future__ import annotations

from graphgps_kmip.encoding import (  # noqa: F401 (imported, they are registered)
    degree_and_heat_kernel,
    expander_graph,
    graphormer_bias,
    laplacian,
    random_walk,
    resistance,
    rrwp,
    truncated_svd,
)
from graphgps_kmip.encoding.knn import KNNGraph
from graphgps_kmip.encoding.positional_encoding import AddEncoding, EdgeEncoding, NodeEncoding, PositionalEncoding

__all__ = ["AddEncoding", "EdgeEncoding", "KNNGraph", "NodeEncoding", "PositionalEncoding"]
