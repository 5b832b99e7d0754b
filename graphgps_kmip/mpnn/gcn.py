"""GCN (Kipf and Welling 2017)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from graphgps_kmip.mpnn.message_passing import Nodes, one_set, unused
from graphgps_kmip.registry import register


@register("message_passing", "GCN")
class GCN(nn.Module):
    r"""Graph convolution with symmetric normalisation; edge features are not used.

    .. math:: x_i' = b + \textstyle\sum_{j \in N(i) \cup \{i\}} W x_j / \sqrt{d_j d_i}

    with degrees d that count edges into a node and its self loop.

    Args:
        dim: width C.
        dropout: not used, as all siblings have it.
        act: not used, as all siblings have it.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: x is a pair: the degrees of the sources are not known then. An encoding is given.
    """

    internal_residual = False

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = GCNConv(dim, dim)

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        unused("GCN", encoding)
        x = one_set("GCN", x, "it needs the degrees of sources")
        return self.conv(x, edge_index), edge_attr
