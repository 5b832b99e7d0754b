"""Edge encoder modules: ``batch -> batch`` with ``batch.edge_attr`` replaced by vectors of width C."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.types import type_ids
from graphgps_kmip.errors import InputError


def edge_features(batch: Batch, encoder: str) -> Tensor:
    """Return ``batch.edge_attr``.

    Args:
        batch: graphs.
        encoder: public name of the encoder that needs it, for the error.

    Raises:
        ValueError: there is none.
    """
    if batch.edge_attr is None:
        raise InputError(f"{encoder} needs edge features, these graphs have none: use the edge encoder DummyEdge")
    return batch.edge_attr


class LinearEdgeEncoder(nn.Module):
    """Encode float features: e' = W e + b.

    Args:
        dim_in: columns of the raw features.
        dim: width C.

    Shapes: batch.edge_attr (E, dim_in), or (E,) for one column -> (E, C), in the dtype of the weights.

    Raises:
        ValueError: the edges have no features, when called.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        features = edge_features(batch, "LinearEdge")
        features = features[:, None] if features.dim() == 1 else features  # (E, dim_in)
        batch.edge_attr = self.encoder(features.to(self.encoder.weight.dtype))
        return batch


class TypeDictEdgeEncoder(nn.Module):
    """Look up a learned vector for the type of each edge.

    Args:
        num_types: number of types, the config's ``dataset.edge_encoder_num_types``.
        dim: width C.

    Shapes: batch.edge_attr (E,) or (E, 1), types in 0..num_types - 1 -> (E, C).

    Raises:
        ValueError: num_types < 1 when built; no types, one outside the range, or several columns, when called.
    """

    def __init__(self, num_types: int, dim: int) -> None:
        super().__init__()
        if num_types < 1:
            raise InputError(f"dataset.edge_encoder_num_types must be at least 1 for TypeDictEdge, got {num_types}")
        self.encoder = nn.Embedding(num_types, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        types = edge_features(batch, "TypeDictEdge")
        types = type_ids(types, self.encoder.num_embeddings, "edge_attr", "dataset.edge_encoder_num_types")
        batch.edge_attr = self.encoder(types)
        return batch


class ConstantEdgeEncoder(nn.Module):
    """Give every edge the same learned vector (the public name is ``DummyEdge``); raw edge features are not read.

    Args:
        dim: width C.

    Shapes: edge_index (2, E) -> batch.edge_attr (E, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        batch.edge_attr = self.encoder.weight.expand(batch.edge_index.size(1), -1)  # (E, C)
        return batch
