"""The norms of a GPS layer, all called as ``norm(x, context)``; each row is one graph-aware choice."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, GraphNorm, LayerNorm

from graphgps_kmip.attention.context import GraphContext


class PerGraph(nn.Module):
    """A norm whose statistics are taken graph by graph, as torch_geometric's LayerNorm in mode "graph" and GraphNorm.

    Shapes: x (N, C) -> (N, C).
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Normalise every graph by itself."""
        return self.norm(x, context.batch, context.num_graphs)


class PerBatch(nn.Module):
    """A norm over all nodes of the mini-batch; a batch of a single node falls back to the running statistics.

    Shapes: x (N, C) -> (N, C).
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:  # noqa: ARG002 (one signature for all norms)
        """Normalise over the nodes of all graphs."""
        return self.norm(x)


# The thesis uses "batch"; the k-MIP paper's LRGB rows "layer" (mean and variance over all nodes AND channels of a
# graph, not per node); Exphormer's code means "graph" where it says layer_norm.
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": lambda dim: PerBatch(BatchNorm(dim, allow_single_element=True)),
    "layer": lambda dim: PerGraph(LayerNorm(dim, mode="graph")),
    "graph": lambda dim: PerGraph(GraphNorm(dim)),
    "none": lambda dim: PerBatch(nn.Identity()),  # noqa: ARG005
}
