"""Message passing without edge features: GCN (Kipf and Welling 2017, equation 2), APPNP and GraphSAGE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn

from graphgps_kmip.mpnn.message_passing import Convolution, SummedAPPNP, SummedGCN, SummedSAGE, replace_self_loops
from graphgps_kmip.ranges import FRACTION, Range
from graphgps_kmip.registry import register


@register("message_passing", "GCN")
class GCN(Convolution):
    r"""Graph convolution with symmetric normalisation; edge features are not used.

    .. math:: x_i' = b + \textstyle\sum_{j \in N(i) \cup \{i\}} W x_j / \sqrt{d_j d_i}

    with degrees d that count the edges into a node and its self loop.

    Arguments, shapes and errors are those of `Convolution`.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedGCN(dim, dim, add_self_loops=False)

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return new node features."""
        return self.conv(x, replace_self_loops(edge_index, None, len(x))[0])


@register("message_passing", "APPNP")
class APPNP(Convolution):
    r"""Linear map and steps of personalised PageRank (Gasteiger et al. 2019, equation 4); edge features are not used.

    .. math::
        h_i = W x_i + b, \qquad z_i^{(0)} = h_i, \qquad
        z_i^{(k+1)} = (1 - \alpha) \textstyle\sum_{j \in N(i) \cup \{i\}} z_j^{(k)} / \sqrt{d_j d_i} + \alpha h_i

    with degrees d that count the edges into a node and its self loop. The published network has the steps after all of
    its linear maps, on the class scores.

    Args:
        dim, dropout, act: as in `Convolution`, as shapes and errors are.
        steps (int, optional): number K of steps, at least 1. (default: 10)
        alpha (float, optional): the part alpha of a node's own features, 0 to 1. (default: 0.1)
    """

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

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return new node features."""
        return self.conv(self.linear(x), replace_self_loops(edge_index, None, len(x))[0])


@register("message_passing", "GraphSAGE")
class GraphSAGE(Convolution):
    r"""Mean of the in-neighbours beside the node itself; edge features are not used.

    .. math:: x_i' = b + W_1 x_i + W_2 \, \mathrm{mean}_{j \in N(i)} x_j

    as in Hamilton et al. 2017 (algorithm 1, line 5, with the mean of all neighbours), without their line 7, which
    scales each node to norm 1.

    Arguments, shapes and errors are those of `Convolution`.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedSAGE(dim, dim)
