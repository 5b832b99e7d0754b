"""Degree encodings of nodes: embedding of the degree, local degree profile LDP (Cai and Wang 2018)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import scatter

from graphgps_kmip.encoding.kernel_encoder import ColumnEncoder, precomputed
from graphgps_kmip.encoding.positional_encoding import NodeEncoding, PositionalEncoding
from graphgps_kmip.ranges import WIDTH, whole
from graphgps_kmip.registry import register


@register("encoding", "Degree")
class Degree(PositionalEncoding):
    """Embedding of the degree (ours)."""

    dim_pe: Annotated[int, WIDTH] = 16
    max_degree: Annotated[int, whole(0, 1_000_000)] = 63

    def settings(self) -> dict[str, int]:
        """Return nothing: every graph has its degrees."""
        return {}

    @staticmethod
    def compute(graph: Data) -> dict[str, Tensor]:
        """Return `out_degrees`."""
        return {"pestat_Degree": out_degrees(graph.edge_index, graph.num_nodes)}

    def encoder(self, dim: int, dim_x: int | None) -> nn.Module:
        """Return a `DegreeEncoder`."""
        return DegreeEncoder(dim, dim_x, **self.arguments(DegreeEncoder))


@register("encoding", "LDP")
class LDP(NodeEncoding):
    """Degree, and statistics of the neighbours' degrees (ours; Cai and Wang 2018)."""

    num_columns: ClassVar[int] = 5

    @staticmethod
    def compute(graph: Data) -> Tensor:
        """Return the `local_degree_profile`."""
        return local_degree_profile(graph.edge_index, graph.num_nodes)


def out_degrees(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the number of edges that leave each node: (2, E) -> (N,), int64."""
    return torch.bincount(edge_index[0], minlength=num_nodes)


def local_degree_profile(edge_index: Tensor, num_nodes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the out-degree of each node, and minimum, maximum, mean and standard deviation of its successors'.

    The standard deviation divides by the number of successors; without successors all are 0. Computed in float64.

    Shapes: edge_index (2, E) -> (N, 5).
    """
    row, column = edge_index
    degree = out_degrees(edge_index, num_nodes).double()
    reduce_of = partial(scatter, index=row, dim_size=num_nodes)
    successors = degree[column]  # (E,)
    mean = reduce_of(successors, reduce="mean")
    deviation = reduce_of((successors - mean[row]).square(), reduce="mean").sqrt()
    minimum, maximum = (reduce_of(successors, reduce=kind) for kind in ("min", "max"))
    return torch.stack([degree, minimum, maximum, mean, deviation], dim=1).to(dtype)


class DegreeEncoder(ColumnEncoder):
    """Look up a learned vector for min(degree, max_degree) and append it to the node features.

    Args:
        dim, dim_x, dim_pe: As of `ColumnEncoder`.
        max_degree (int, optional): Larger degrees count as this one. (default: 63)

    Shapes: batch.x (N, dim_x), batch.pestat_Degree (N,), integers -> batch.x (N, C), in the dtype of the weights.
    """

    def __init__(self, dim: int, dim_x: int | None = None, *, dim_pe: int = 16, max_degree: int = 63) -> None:
        super().__init__("Degree", dim, dim_x, dim_pe)
        self.encoder = nn.Embedding(max_degree + 1, dim_pe)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        degrees = precomputed(batch, "Degree", "pestat_Degree", ())
        return self.append(batch, self.encoder(degrees.clamp(max=self.encoder.num_embeddings - 1)))
