"""The norms of a GPS layer, all called as ``norm(x, context)``; each row is one graph-aware choice."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm, GraphNorm

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.model.graph_layer_norm import GraphLayerNorm


class LayerPerGraph(nn.Module):
    """`GraphLayerNorm`, also of a graph whose nodes are divided over processes.

    Shapes: x (N, C) -> (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = GraphLayerNorm(dim)

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Normalise every graph by itself."""
        return self.norm(x, context.batch, context.num_graphs, context.halo.total if context.halo else None)


class ChannelPerGraph(nn.Module):
    """torch_geometric's GraphNorm (Cai et al. 2021), also of a graph whose nodes are divided over processes.

    Shapes: x (N, C) -> (N, C).
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = GraphNorm(dim)

    def forward(self, x: Tensor, context: GraphContext) -> Tensor:
        """Normalise every channel of every graph by itself."""
        if context.halo is None:
            return self.norm(x, context.batch, context.num_graphs)
        size = context.halo.total(x.new_tensor(x.size(0)))
        x = x - context.halo.total(x.sum(dim=0)) / size * self.norm.mean_scale
        variance = context.halo.total(x.square().sum(dim=0)) / size
        return self.norm.weight * x / (variance + self.norm.eps).sqrt() + self.norm.bias


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
    "layer": LayerPerGraph,
    "graph": ChannelPerGraph,
    "none": lambda dim: PerBatch(nn.Identity()),  # noqa: ARG005
}
