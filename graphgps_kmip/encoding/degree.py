"""Degree encodings of nodes: Degree, an embedding of the degree, and LDP, the local degree profile.

LDP: Cai and Wang 2018, "A simple yet effective baseline for non-attributed graph classification".
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from graphgps_kmip.encoding.kernel_encoder import append_columns, precomputed
from graphgps_kmip.encoding.positional_encoding import NodeEncoding, PositionalEncoding
from graphgps_kmip.errors import InputError
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
    """Return the number of edges that leave each node.

    Shapes: edge_index (2, E) -> (N,), int64.
    """
    return torch.bincount(edge_index[0], minlength=num_nodes)


def local_degree_profile(edge_index: Tensor, num_nodes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the out-degree of each node, and minimum, maximum, mean and standard deviation of its successors'.

    The standard deviation divides by the number of successors. A node without successors has 0 everywhere.

    Args:
        edge_index (Tensor): Edges of one graph or of a batch; a repeated edge counts as often as it occurs.
        num_nodes (int): N.
        dtype (dtype, optional): Of the result; float64 inside. (default: ``torch.float32``)

    Shapes: edge_index (2, E) -> (N, 5).
    """
    row, column = edge_index
    degree = out_degrees(edge_index, num_nodes).double()
    around = degree[column]  # (E,)
    empty = degree.new_zeros(num_nodes)

    def mean(values: Tensor) -> Tensor:
        return empty.index_add(0, row, values) / degree.clamp(min=1)

    average = mean(around)
    minimum, maximum = (empty.scatter_reduce(0, row, around, kind, include_self=False) for kind in ("amin", "amax"))
    deviation = mean((around - average[row]).square()).sqrt()
    return torch.stack([degree, minimum, maximum, average, deviation], dim=1).to(dtype)


class DegreeEncoder(nn.Module):
    """Look up a learned vector for min(degree, max_degree) and append it to the node features.

    The keyword-only arguments are options of the config group ``posenc_Degree``.

    Args:
        dim, dim_x, dim_pe: As of `KernelEncoder`.
        max_degree (int, optional): Larger degrees count as this one. (default: 63)

    Shapes: batch.x (N, dim_x), batch.pestat_Degree (N,), integers -> batch.x (N, C), in the dtype of the weights.

    Raises:
        InputError: no room for features, or max_degree < 0, when built; degrees missing when called.
    """

    def __init__(self, dim: int, dim_x: int | None = None, *, dim_pe: int = 16, max_degree: int = 63) -> None:
        super().__init__()
        if not 1 <= dim_pe < dim or max_degree < 0:
            raise InputError(
                f"posenc_Degree needs 1 <= dim_pe < width {dim} and max_degree >= 0, got {dim_pe=}, {max_degree=}"
            )
        self.linear_x = nn.Identity() if dim_x is None else nn.Linear(dim_x, dim - dim_pe)
        self.encoder = nn.Embedding(max_degree + 1, dim_pe)

    def forward(self, batch: Batch) -> Batch:
        """Replace ``batch.x``."""
        degrees = precomputed(batch, "Degree", "pestat_Degree", ())
        encoding = self.encoder(degrees.clamp(max=self.encoder.num_embeddings - 1))  # (N, dim_pe)
        return append_columns(self, batch, encoding, encoding.dtype)
