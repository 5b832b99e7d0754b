"""Helpers of message passing layers: errors, and wrappers of torch_geometric's convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.self_loops import with_own_loops


def required_edge_attr(layer: str, edge_attr: Tensor | None) -> Tensor:
    """Return the edge features of a layer that needs them.

    Raises:
        ValueError: they are None.
    """
    if edge_attr is None:
        raise InputError(
            f"{layer} needs edge features, and this data has none: "
            "set dataset.edge_encoder True and dataset.edge_encoder_name DummyEdge (one learned vector)"
        )
    return edge_attr


def refuse_encoding(layer: str, encoding: Tensor | None) -> None:
    """Refuse an encoding that a layer does not read.

    Raises:
        ValueError: it is not None.
    """
    if encoding is not None:
        raise InputError(
            f"{layer} does not read EquivStableLapPE here: only GatedGCN and GINE do, built with equivstable_pe=True"
        )


class NodeConvolution(nn.Module):
    """Base of layers around one torch_geometric convolution, `conv`, that reads neither edge features nor encodings.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: an encoding is given.
    """

    internal_residual = False

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None, encoding: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        refuse_encoding(type(self).__name__, encoding)
        return self.conv(x, edge_index), edge_attr


class PlainConv(nn.Module):
    """A torch_geometric convolution with the call contract of this package; edge features are not used.

    Args:
        conv (Module): ``(x, edge_index) -> x``.

    Shapes:
        x (N, C), edge_index (2, E), edge_attr anything -> (N, C'), edge_attr as given.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.own_loops = conv, bool(getattr(conv, "add_self_loops", False))
        if self.own_loops:  # added here: in the convolution the host would wait for the device
            conv.add_self_loops = False

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        used = with_own_loops(edge_index, None, x.size(0))[0] if self.own_loops else edge_index
        return self.conv(x, used), edge_attr
