"""GENConv message passing: softmax aggregation (Li et al. 2020, DeeperGCN)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch_geometric.nn import BatchNorm
from torch_geometric.nn import GENConv as PlainGENConv

from graphgps_kmip.mpnn.message_passing import Convolution
from graphgps_kmip.registry import register


@register("message_passing", "GENConv")
class GENConv(Convolution):
    r"""Graph convolution that weighs messages by a softmax over the edges of a node, channel by channel.

    .. math::
        m_{ij} = \mathrm{ReLU}(x_j + e_{ij}) + 10^{-7}, \qquad
        x_i' = W_2 \, \mathrm{ReLU}(\mathrm{BN}(W_1 (x_i + \textstyle\sum_j \mathrm{softmax}_j(m_{ij}) \odot m_{ij})))

    with W_1 to width 2C and no biases: torch_geometric's defaults, as in GraphGPS. Without edge features e is 0.

    Arguments, shapes and errors are those of `Convolution`, with edge_attr (E, C) or None.
    """

    def __init__(self, dim: int, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU) -> None:  # noqa: ARG002
        super().__init__()
        self.conv = PlainGENConv(dim, dim)
        # torch's own BatchNorm refuses a training batch of one node
        self.conv.mlp[1] = BatchNorm(2 * dim, allow_single_element=True)

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Return new node features."""
        return self.conv(x, edge_index, edge_attr)
