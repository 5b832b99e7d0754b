"""GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022) message passing, with edge features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import Convolution, SummedGAT, replace_self_loops, required_edge_attr
from graphgps_kmip.ranges import HEADS
from graphgps_kmip.registry import register


@register("message_passing", "GAT")
class GAT(Convolution):
    r"""Graph attention over neighbours, with additive scores.

    .. math::
        a_{ij} = \mathrm{softmax}_j(\mathrm{LeakyReLU}(u^T W x_i + v^T W x_j + w^T W_e e_{ij})), \qquad
        x_i' = b + \textstyle\sum_j a_{ij} W x_j

    per head; the heads are concatenated. j runs over the in-neighbours of i and i itself; the edge features of a self
    loop are the mean of those of the edges into i.

    Args:
        dim, dropout, act: as in `Convolution`; weights are not dropped, as in GraphGPS.
        heads (int, optional): number of heads; must divide C. (default: 1)
        use_edge_attr (bool, optional): use the edge features e. False in the public k-MIP code's networks of GAT only.
            (default: True)

    Shapes: x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C), edge_attr as given.

    Raises:
        ValueError: heads do not divide C; when called: edge_attr is None although it is used, or an encoding is given.
    """

    convolution: type[nn.Module] = SummedGAT
    loops_inside = True  # of the convolution, which then need not average features of edges

    def __init__(
        self,
        dim: int,
        dropout: float = 0.0,  # noqa: ARG002
        act: Callable[[], nn.Module] = nn.ReLU,  # noqa: ARG002
        *,
        heads: Annotated[int, HEADS] = 1,
        use_edge_attr: bool = True,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise InputError(
                f"gt.{type(self).__name__.lower()}.heads: the width {dim} must be a multiple of it, got {heads}"
            )
        self.use_edge_attr = use_edge_attr
        edge_dim = dim if use_edge_attr else None
        self.conv = self.convolution(dim, dim // heads, heads, edge_dim=edge_dim, add_self_loops=self.loops_inside)

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Return new node features."""
        name = f"{type(self).__name__} with use_edge_attr"
        used = required_edge_attr(name, edge_attr) if self.use_edge_attr else None
        looped = (edge_index, used) if self.loops_inside else replace_self_loops(edge_index, used, len(x))
        return self.conv(x, *looped)


@register("message_passing", "GATv2")
class GATv2(GAT):
    r"""Graph attention over neighbours whose ranking depends on the query, unlike GAT's.

    .. math::
        a_{ij} = \mathrm{softmax}_j(u^T \mathrm{LeakyReLU}(W_r x_i + W_l x_j + W_e e_{ij})), \qquad
        x_i' = b + \textstyle\sum_j a_{ij} W_l x_j

    per head, W_l and W_r with biases; arguments, shapes and errors are those of `GAT`.
    """

    convolution, loops_inside = GATv2Conv, False
