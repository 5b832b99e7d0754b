"""GCN message passing: graph convolution with symmetric normalisation (Kipf and Welling 2017, equation 2)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.common.sharded_nodes import ShardedNodes
from graphgps_kmip.mpnn.message_passing import (
    NodeConvolution,
    Nodes,
    looped_targets,
    refuse_encoding,
    symmetric_weights,
)
from graphgps_kmip.mpnn.summed_convolutions import SummedGCN, with_own_loops
from graphgps_kmip.registry import register


@register("message_passing", "GCN")
class GCN(NodeConvolution):
    r"""Graph convolution with symmetric normalisation; edge features are not used.

    .. math:: x_i' = b + \textstyle\sum_{j \in N(i) \cup \{i\}} W x_j / \sqrt{d_j d_i}

    with degrees d that count the edges into a node and its self loop.

    Args:
        dim (int): width C.
        dropout (float, optional): not used, for a common signature. (default: 0.0)
        act (callable, optional): not used, for a common signature. (default: ReLU)

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: x is a pair other than `ShardedNodes`: the degrees of its sources are unknown; an encoding is given.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedGCN(dim, dim, add_self_loops=False)

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        targets = looped_targets("GCN", x, "it needs the degrees of sources")
        looped, _ = with_own_loops(edge_index, None, len(targets))
        if not isinstance(x, ShardedNodes):
            return super().forward(x, looped, None, encoding)[0], edge_attr
        refuse_encoding("GCN", encoding)
        return self._of_shard(x, looped), edge_attr

    def _of_shard(self, x: ShardedNodes, edge_index: Tensor) -> Tensor:
        """Return new features of the own nodes."""
        weight, size = symmetric_weights(x, edge_index), tuple(map(len, x))
        return self.conv.propagate(edge_index, x=self.conv.lin(x[0]), edge_weight=weight, size=size) + self.conv.bias
