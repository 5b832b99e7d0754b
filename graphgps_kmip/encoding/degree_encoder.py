"""An embedding of each node's degree beside its features."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Batch

from graphgps_kmip.errors import InputError


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
