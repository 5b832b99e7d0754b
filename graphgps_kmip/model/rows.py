"""Rows of length 1, as GraphGym's layers leave them (You et al. 2020, the key ``gnn.l2norm``)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize


class UnitRows(nn.Module):
    r"""Scale every row to Euclidean length 1: :math:`x_n / \max(\lVert x_n \rVert, 10^{-12})`.

    Rows of zeros stay zeros.

    Shapes: x (N, C) -> (N, C).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled rows."""
        return normalize(x, dim=-1)
