"""PNA message passing: several aggregations side by side (Corso et al. 2020), without degree scalers as in GraphGPS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn
from torch_geometric.nn import PNAConv

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import Convolution, required_edge_attr
from graphgps_kmip.ranges import WIDTH
from graphgps_kmip.registry import register


@register("message_passing", "PNA")
class PNA(Convolution):
    r"""Convolution that takes mean, maximum and sum of the messages side by side.

    .. math::
        m_{ij} = W_1 [x_i, x_j, W_e e_{ij}], \qquad
        x_i' = W_3 W_2 [x_i, \mathrm{mean}_j m_{ij}, \max_j m_{ij}, \textstyle\sum_j m_{ij}]

    all linear maps with biases; a node without edges gets zeros from all three. Differs from the paper: the only scaler
    is the identity; one tower.

    Args:
        dim, dropout, act: as in `Convolution`.
        edge_dim (int, optional): width of the edge features; None is C. (default: None)

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, edge_dim) -> (N, C), edge_attr as given.

    Raises:
        ValueError: edge_attr is None or of another width, or an encoding is given.
    """

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,  # noqa: ARG002
        act: Callable[[], nn.Module] = nn.ReLU,  # noqa: ARG002
        *,
        edge_dim: Annotated[int | None, WIDTH] = None,
    ) -> None:
        super().__init__()
        degrees = torch.tensor([0, 1])  # a histogram that only the other scalers would read
        self.conv = PNAConv(dim, dim, ["mean", "max", "sum"], ["identity"], degrees, edge_dim or dim)

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Return new node features."""
        edge_attr = required_edge_attr("PNA", edge_attr)
        if edge_attr.size(1) != self.conv.edge_dim:
            raise InputError(
                f"gt.pna.edge_dim: the edge features are {edge_attr.size(1)} wide, not {self.conv.edge_dim}: set it to "
                "the former, or None"
            )
        return self.conv(x, edge_index, edge_attr)
