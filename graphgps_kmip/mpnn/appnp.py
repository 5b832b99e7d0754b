"""APPNP message passing: a linear map, then steps of personalised PageRank (Gasteiger et al. 2019, equation 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn

from graphgps_kmip.common.sharded_nodes import ShardedNodes
from graphgps_kmip.mpnn.message_passing import Nodes, looped_targets, refuse_encoding, symmetric_weights
from graphgps_kmip.mpnn.summed_convolutions import SummedAPPNP, with_own_loops
from graphgps_kmip.ranges import FRACTION, Range
from graphgps_kmip.registry import register


@register("message_passing", "APPNP")
class APPNP(nn.Module):
    r"""Linear map and approximate personalised PageRank; edge features are not used.

    .. math::
        h_i = W x_i + b, \qquad z_i^{(0)} = h_i, \qquad
        z_i^{(k+1)} = (1 - \alpha) \textstyle\sum_{j \in N(i) \cup \{i\}} z_j^{(k)} / \sqrt{d_j d_i} + \alpha h_i

    with degrees d that count the edges into a node and its self loop, as those of GCN. One layer reads nodes that are K
    edges away and keeps a part of each node's own features, without more parameters: for few labelled nodes, in a
    network of one layer. The published network has the steps behind all of its linear maps, on the class scores.

    Args:
        dim (int): width C.
        dropout (float, optional): not used, for a common signature. (default: 0.0)
        act (callable, optional): not used, for a common signature. (default: ReLU)
        steps (int, optional): number K of steps, at least 1. (default: 10)
        alpha (float, optional): the part alpha of a node's own features, 0 to 1. (default: 0.1)

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: x is a pair other than `ShardedNodes`: the degrees of its sources are unknown; an encoding is given.
    """

    internal_residual = False

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,  # noqa: ARG002
        act: Callable[[], nn.Module] = nn.ReLU,  # noqa: ARG002
        *,
        steps: Annotated[int, Range(1, 1000)] = 10,
        alpha: Annotated[float, FRACTION] = 0.1,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.conv = SummedAPPNP(steps, alpha)

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        refuse_encoding("APPNP", encoding)
        targets = looped_targets("APPNP", x, "it needs the degrees of sources")
        looped, _ = with_own_loops(edge_index, None, len(targets))
        start = self.linear(targets)
        out = self._of_shard(x, start, looped) if isinstance(x, ShardedNodes) else self.conv(start, looped)
        return out, edge_attr

    def _of_shard(self, x: ShardedNodes, start: Tensor, edge_index: Tensor) -> Tensor:
        """Take the steps on the own nodes; before each, the halo's features come from the processes that own it."""
        weight, size, out = symmetric_weights(x, edge_index), tuple(map(len, x)), start
        for _ in range(self.conv.K):
            moved = self.conv.propagate(edge_index, x=x.extend(out), edge_weight=weight, size=size)
            out = (1 - self.conv.alpha) * moved + self.conv.alpha * start
        return out
