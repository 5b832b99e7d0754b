"""GIN (Xu et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from graphgps_kmip.mpnn.message_passing import Nodes, unused


class GIN(nn.Module):
    r"""Graph isomorphism convolution; edge features are not used.

    .. math:: x_i' = \mathrm{Linear}(\mathrm{act}(\mathrm{Linear}(x_i + \textstyle\sum_j x_j)))

    Differs from the paper: no learned weight of x_i (epsilon is 0), no BatchNorm inside, as in GraphGPS.

    Args:
        dim: width C.
        dropout: not used, as all siblings have it.
        act: builds the activation inside.

    Shapes:
        x (N, C) or a pair (M, C), (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: an encoding is given.
    """

    internal_residual = False

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = GINConv(nn.Sequential(nn.Linear(dim, dim), act(), nn.Linear(dim, dim)))

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        unused("GIN", encoding)
        return self.conv(x, edge_index), edge_attr
