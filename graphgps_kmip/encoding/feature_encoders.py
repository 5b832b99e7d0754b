"""Node encoder modules: ``batch -> batch`` with ``batch.x`` replaced by vectors of width C."""

from __future__ import annotations

from torch import nn
from torch_geometric.data import Batch

from graphgps_kmip.encoding.types import type_ids
from graphgps_kmip.errors import InputError


class LinearNodeEncoder(nn.Module):
    """Encode float features: x' = W x + b.

    Args:
        dim_in: columns of the raw features.
        dim: width C.

    Shapes: batch.x (N, dim_in) -> (N, C), in the dtype of the weights.
    """

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(dim_in, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encoder(batch.x.to(self.encoder.weight.dtype))
        return batch


class TypeDictNodeEncoder(nn.Module):
    """Look up a learned vector for the type of each node.

    Args:
        num_types: number of types, the config's ``dataset.node_encoder_num_types``.
        dim: width C.

    Shapes: batch.x (N,) or (N, 1), types in 0..num_types - 1 -> (N, C).

    Raises:
        ValueError: num_types < 1 when built; a type outside the range, or several columns, when called.
    """

    def __init__(self, num_types: int, dim: int) -> None:
        super().__init__()
        if num_types < 1:
            raise InputError(f"dataset.node_encoder_num_types must be at least 1 for TypeDictNode, got {num_types}")
        self.encoder = nn.Embedding(num_types, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        types = type_ids(batch.x, self.encoder.num_embeddings, "x", "dataset.node_encoder_num_types")
        batch.x = self.encoder(types)
        return batch


class ConstantNodeEncoder(nn.Module):
    """Give every node the same learned vector, for graphs whose nodes have no features; ``batch.x`` is not read.

    Args:
        dim: width C.

    Shapes: N nodes -> batch.x (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(1, dim)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        batch.x = self.encoder.weight.expand(batch.num_nodes, -1)  # (N, C)
        return batch
