"""GAT (Veličković et al. 2018, with edge features as in torch_geometric).

GATv2 (Brody et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from torch import Tensor, nn
from torch_geometric.nn import GATConv, GATv2Conv

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.message_passing import Nodes, needed, one_set, unused
from graphgps_kmip.ranges import HEADS
from graphgps_kmip.registry import register


@register("message_passing", "GAT")
class GAT(nn.Module):
    r"""Graph attention over neighbours, with additive scores.

    .. math::
        a_{ij} = \mathrm{softmax}_j(\mathrm{LeakyReLU}(u^T W x_i + v^T W x_j + w^T W_e e_{ij})), \qquad
        x_i' = b + \textstyle\sum_j a_{ij} W x_j

    per head; the heads stand side by side. j runs over the in-neighbours of i and i itself; the edge features of a self
    loop are the mean of those of the edges into i.

    Args:
        dim: width C of nodes and edges.
        dropout: not used, as all siblings have it; weights are not dropped, as in GraphGPS.
        act: not used, as all siblings have it.
        heads: number of heads, which divides C.
        use_edge_attr: whether e takes part. Not in the public k-MIP code's networks of GAT alone.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C), edge_attr as given.

    Raises:
        ValueError: heads do not divide C when built; edge_attr is None where it takes part; x is a pair: self loops are
            told by equal numbers of source and target. An encoding is given.
    """

    internal_residual = False

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
            raise InputError(f"gt.gat.heads: the width {dim} must be a multiple of it, got {heads}")
        self.use_edge_attr = use_edge_attr
        self.conv = GATConv(dim, dim // heads, heads, edge_dim=dim if use_edge_attr else None)

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        unused("GAT", encoding)
        x = one_set("GAT", x, "it could not tell self loops")
        used = needed("GAT with use_edge_attr", edge_attr) if self.use_edge_attr else None
        return self.conv(x, edge_index, used), edge_attr


@register("message_passing", "GATv2")
class GATv2(nn.Module):
    r"""Graph attention over neighbours whose ranking depends on the query, unlike GAT's.

    .. math::
        a_{ij} = \mathrm{softmax}_j(u^T \mathrm{LeakyReLU}(W_r x_i + W_l x_j + W_e e_{ij})), \qquad
        x_i' = b + \textstyle\sum_j a_{ij} W_l x_j

    per head, W_l and W_r with biases; the heads stand side by side. j runs over the in-neighbours of i and i itself;
    the edge features of a self loop are the mean of those of the edges into i.

    Args:
        dim: width C of nodes and edges.
        dropout: not used, as all siblings have it; weights are not dropped, as in GraphGPS.
        act: not used, as all siblings have it.
        heads: number of heads, which divides C.
        use_edge_attr: whether e takes part. Not in the public k-MIP code's networks of GAT alone.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr (E, C) -> (N, C), edge_attr as given.

    Raises:
        ValueError: heads do not divide C when built; edge_attr is None where it takes part; x is a pair: self loops are
            told by equal numbers of source and target. An encoding is given.
    """

    internal_residual = False

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
            raise InputError(f"gt.gatv2.heads: the width {dim} must be a multiple of it, got {heads}")
        self.use_edge_attr = use_edge_attr
        self.conv = GATv2Conv(dim, dim // heads, heads, edge_dim=dim if use_edge_attr else None)

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        unused("GATv2", encoding)
        x = one_set("GATv2", x, "it could not tell self loops")
        used = needed("GATv2 with use_edge_attr", edge_attr) if self.use_edge_attr else None
        return self.conv(x, edge_index, used), edge_attr
