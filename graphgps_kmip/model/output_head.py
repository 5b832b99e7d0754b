"""The head of a network whose last layer has the outputs already."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class OutputHead(nn.Module):
    """Take node features as predictions: nothing is learned.

    Args:
        masked: keep the nodes of ``batch[f"{batch.split}_mask"]`` only, as in `NodeHead`.

    Shapes: batch.x (N, dim_out) as it is, or the masked rows of it; labels alike.
    """

    level = "node"

    def __init__(self, masked: bool) -> None:
        super().__init__()
        self.masked = masked

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and labels of the nodes."""
        rows = batch[f"{batch.split}_mask"] if self.masked else slice(None)
        return batch.x[rows], batch.y[rows]
