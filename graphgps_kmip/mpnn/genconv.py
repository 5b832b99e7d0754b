"""GENConv message passing: softmax aggregation (Li et al. 2020, DeeperGCN)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm
from torch_geometric.nn import GENConv as Convolution

from graphgps_kmip.mpnn.message_passing import refuse_encoding
from graphgps_kmip.registry import register


@register("message_passing", "GENConv")
class GENConv(nn.Module):
    r"""Graph convolution that weighs messages by a softmax over the edges of a node, channel by channel.

    .. math::
        m_{ij} = \mathrm{ReLU}(x_j + e_{ij}) + 10^{-7}, \qquad
        x_i' = W_2 \, \mathrm{ReLU}(\mathrm{BN}(W_1 (x_i + \textstyle\sum_j \mathrm{softmax}_j(m_{ij}) \odot m_{ij})))

    with W_1 to width 2C and no biases: torch_geometric's defaults, as in GraphGPS. Without edge features e is 0.

    Args:
        dim (int): width C of nodes and edges.
        dropout (float, optional): not used, for a common signature. (default: 0.0)
        act (callable, optional): not used, for a common signature. (default: ReLU)

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) or None -> (N, C), edge_attr as given.

    Raises:
        ValueError: an encoding is given.
    """

    internal_residual = False

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = Convolution(dim, dim)
        # torch's own BatchNorm refuses a training batch of one node
        self.conv.mlp[1] = BatchNorm(2 * dim, allow_single_element=True)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        refuse_encoding("GENConv", encoding)
        return self.conv(x, edge_index, edge_attr), edge_attr
