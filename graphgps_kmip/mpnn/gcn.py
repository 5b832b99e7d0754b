"""GCN message passing: graph convolution with symmetric normalisation (Kipf and Welling 2017, equation 2)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from graphgps_kmip.mpnn.message_passing import NodeConvolution
from graphgps_kmip.mpnn.self_loops import with_own_loops
from graphgps_kmip.mpnn.summed_convolutions import SummedGCN
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
        ValueError: an encoding is given.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = SummedGCN(dim, dim, add_self_loops=False)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        looped, _ = with_own_loops(edge_index, None, len(x))
        return super().forward(x, looped, None, encoding)[0], edge_attr
