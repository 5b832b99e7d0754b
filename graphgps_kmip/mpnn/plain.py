"""A convolution of torch_geometric as a message passing module, also one that changes the width."""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.mpnn.message_passing import Nodes, one_set


class PlainConv(nn.Module):
    """A convolution of torch_geometric, called as our message passing modules are; edge features are not used.

    Args:
        conv: ``(x, edge_index) -> x``.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C'), edge_attr as given.

    Raises:
        ValueError: x is a pair: self loops are told by equal numbers of source and target.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        return self.conv(one_set(type(self.conv).__name__, x, "it could not tell self loops"), edge_index), edge_attr
