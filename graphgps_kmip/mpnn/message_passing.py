"""Helpers of message passing layers: features of source and target nodes, errors, and a wrapper of PyG convolutions."""

from __future__ import annotations

from torch import Tensor, nn

from graphgps_kmip.common.sharded_nodes import ShardedNodes
from graphgps_kmip.errors import InputError
from graphgps_kmip.mpnn.summed_convolutions import with_own_loops

Nodes = Tensor | tuple[Tensor, Tensor]


def source_and_target(x: Nodes) -> tuple[Tensor, Tensor]:
    """Return features of sources and of targets; one tensor serves as both."""
    return x if isinstance(x, tuple) else (x, x)


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


def single_set(layer: str, x: Nodes, why: str) -> Tensor:
    """Return the node features of a layer that supports one set of nodes only.

    Raises:
        ValueError: they are a pair.
    """
    if isinstance(x, tuple):
        raise InputError(f"{layer} takes one set of nodes, not a pair of sources and targets: {why}")
    return x


def looped_targets(layer: str, x: Nodes, why: str) -> Tensor:
    """Return the features of the targets, of a layer that adds self loops: of one set of nodes, or of its shard.

    Raises:
        ValueError: any other pair.
    """
    return x[1] if isinstance(x, ShardedNodes) else single_set(layer, x, why)


def symmetric_weights(x: ShardedNodes, edge_index: Tensor) -> Tensor:
    r"""Return :math:`1 / \sqrt{d_j d_i}` of each edge into a shard, with the degrees of the whole graph.

    Shapes: edge_index (2, E), the nodes' own loops among the edges; returns (E, 1).
    """
    targets, (source, target) = x[1], edge_index
    degree = targets.new_zeros(len(targets)).index_add_(0, target, targets.new_ones(len(target)))
    factor = x.extend(degree.rsqrt()[:, None])  # at least 1, the own loop; the halo's from the processes that own it
    return factor[source] * factor[target]


def refuse_encoding(layer: str, encoding: Nodes | None) -> None:
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
        x (N, C) or a pair (M, C), (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

    Raises:
        ValueError: an encoding is given.
    """

    internal_residual = False

    def forward(
        self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None, encoding: Nodes | None = None
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

    Raises:
        ValueError: x is a pair, in which self loops cannot be recognised.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.own_loops = conv, bool(getattr(conv, "add_self_loops", False))
        if self.own_loops:  # added here: in the convolution the host would wait for the device
            conv.add_self_loops = False

    def forward(self, x: Nodes, edge_index: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        x = single_set(type(self.conv).__name__, x, "self loops cannot be recognised in pairs")
        used = with_own_loops(edge_index, None, x.size(0))[0] if self.own_loops else edge_index
        return self.conv(x, used), edge_attr
