"""An encoder of nodes at work on edges (ERE, RWSEEdge): precomputed numbers of an edge beside its features."""

from __future__ import annotations

from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import BatchNorm

from graphgps_kmip.encoding.edge import edge_features


class OnEdges(nn.Module):
    """Give an encoder the edges of a batch as if they were nodes.

    Args:
        encoder: module that reads ``x`` and statistics (rows of nodes), and replaces ``x``.
        statistics: name of what it reads beside ``x``; the batch has it as ``edge_<statistics>``, as torch_geometric
            goes by names where a graph has as many nodes as edges.
        dim_norm: columns of the edge features before it, which then pass a BatchNorm first; None: no norm.

    Shapes: batch.edge_attr (E, C'), batch.edge_<statistics> (E, K) -> batch.edge_attr (E, C).

    Raises:
        ValueError: no edge features, when called; and what the encoder raises.
    """

    def __init__(self, encoder: nn.Module, statistics: str, dim_norm: int | None = None) -> None:
        super().__init__()
        self.encoder, self.statistics = encoder, statistics
        self.norm = nn.Identity() if dim_norm is None else BatchNorm(dim_norm, allow_single_element=True)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.edge_attr``."""
        edges = Data(x=self.norm(edge_features(batch, self.statistics)))
        if f"edge_{self.statistics}" in batch:
            edges[self.statistics] = batch[f"edge_{self.statistics}"]
        batch.edge_attr = self.encoder(edges).x
        return batch
