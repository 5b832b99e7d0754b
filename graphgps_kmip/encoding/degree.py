"""Degrees of nodes, and the local degree profile: statistics of the degrees around a node (Cai and Wang 2018).

An embedding of each node's degree beside its features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError

NUM_STATISTICS = 5  # of a profile


def out_degrees(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the number of edges that leave each node.

    Shapes: edge_index (2, E) -> (N,), int64.
    """
    return torch.bincount(edge_index[0], minlength=num_nodes)


def local_degree_profile(edge_index: Tensor, num_nodes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the out-degree of each node, and minimum, maximum, mean and standard deviation of its successors'.

    The standard deviation divides by the number of successors. A node without successors has 0 everywhere.

    Args:
        edge_index: edges of one graph or of a batch; a repeated edge counts as often as it stands there.
        num_nodes: N.
        dtype: of the result; float64 inside.

    Shapes: edge_index (2, E) -> (N, 5).
    """
    row, column = edge_index
    degree = out_degrees(edge_index, num_nodes).double()
    around = degree[column]  # (E,)
    empty = degree.new_zeros(num_nodes)

    def mean(values: Tensor) -> Tensor:
        return empty.index_add(0, row, values) / degree.clamp(min=1)

    average = mean(around)
    least, most = (empty.scatter_reduce(0, row, around, kind, include_self=False) for kind in ("amin", "amax"))
    deviation = mean((around - average[row]).square()).sqrt()
    return torch.stack([degree, least, most, average, deviation], dim=1).to(dtype)


class DegreeEncoder(nn.Module):
    """Look up a learned vector for min(degree, max_degree) and append it to the node features.

    The keyword-only arguments are options of the config group ``posenc_Degree``.

    Args:
        dim: width C of the result.
        dim_x: columns of ``batch.x``, which a linear layer maps to C - dim_pe. None: another encoder has made
            ``batch.x`` that wide, and it passes as it is.
        dim_pe: width of the encoding in the result.
        max_degree: larger degrees count as this one.

    Shapes: batch.x (N, dim_x), batch.pestat_Degree (N,), integers -> batch.x (N, C), in the dtype of the weights.

    Raises:
        ValueError: no room for features, or max_degree < 0, when built; degrees missing when called.
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
        if "pestat_Degree" not in batch:
            raise InputError("Degree needs pestat_Degree, but the graphs do not have it: set posenc_Degree.enable True")
        encoding = self.encoder(batch.pestat_Degree.clamp(max=self.encoder.num_embeddings - 1))  # (N, dim_pe)
        batch.x = torch.cat([self.linear_x(batch.x.to(encoding.dtype)), encoding], dim=1)
        return batch
