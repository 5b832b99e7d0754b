"""Parts of message passing layers: errors, wrappers of torch_geometric's convolutions, distance gate, self loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import compute_once, host_copy


def required_edge_attr(layer: str, edge_attr: Tensor | None) -> Tensor:
    """Return the edge features of a layer that needs them; ValueError where there are none."""
    if edge_attr is None:
        raise InputError(
            f"{layer} needs edge features, and this data has none: "
            "set dataset.edge_encoder True and dataset.edge_encoder_name DummyEdge (one learned vector)"
        )
    return edge_attr


def refuse_encoding(layer: str, encoding: Tensor | None) -> None:
    """Raise ValueError where a layer is given an encoding that it does not read."""
    if encoding is not None:
        raise InputError(
            f"{layer} does not read EquivStableLapPE here: only GatedGCN and GINE do, built with equivstable_pe=True"
        )


class NodeConvolution(nn.Module):
    """Base of layers around one torch_geometric convolution, `conv`, that reads neither edge features nor encodings.

    Args:
        dim (int): width C.
        dropout (float, optional): not used, for a common signature. (default: 0.0)
        act (callable, optional): not used, for a common signature. (default: ReLU)

    Shapes: x (N, C), edge_index (2, E), edge_attr anything -> (N, C), edge_attr as given.

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

    Shapes: x (N, C), edge_index (2, E), edge_attr anything -> (N, C'), edge_attr as given.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.adds_loops = conv, bool(getattr(conv, "add_self_loops", False))
        if self.adds_loops:  # added here: in the convolution the host would wait for the device
            conv.add_self_loops = False

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return new node features, and the edge features as they are."""
        used = replace_self_loops(edge_index, None, x.size(0))[0] if self.adds_loops else edge_index
        return self.conv(x, used), edge_attr


class DistanceGate(nn.Module):
    r"""One number in (0, 1) per edge, from the distance between its source and target node in the encoding p.

    .. math:: r_{ij} = \sigma(w_2^T \, \mathrm{act}(w_1 \lVert p_i - p_j \rVert^2 + b_1) + b_2)

    It is invariant to signs and bases of the eigenvectors (EquivStableLapPE, Wang et al. 2022).

    Args:
        dim (int): hidden width.
        act (callable, optional): builds the activation. (default: ReLU)

    Shapes: encoding (N, P), edge_index (2, E) -> (E, 1).
    """

    def __init__(self, dim: int, act: Callable[[], nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(1, dim), act(), nn.Linear(dim, 1))

    def forward(self, encoding: Tensor | None, edge_index: Tensor) -> Tensor:
        """Return the gate of each edge."""
        if encoding is None:
            raise InputError(
                "a layer with equivstable_pe=True needs the encoding: set posenc_EquivStableLapPE.enable True and "
                "name EquivStableLapPE in dataset.node_encoder_name"
            )
        source, target = edge_index
        difference = encoding.index_select(0, target) - encoding.index_select(0, source)
        return torch.sigmoid(self.mlp(difference.square().sum(dim=1, keepdim=True)))


def factor_of(layer: str, gate: DistanceGate | None, encoding: Tensor | None, edge_index: Tensor) -> Tensor | None:
    """Return the gate of each edge (E, 1), or None without one; ValueError for an encoding or a gate alone."""
    return refuse_encoding(layer, encoding) if gate is None else gate(encoding, edge_index)


def replace_self_loops(edge_index: Tensor, edge_attr: Tensor | None, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """Replace the self loops of a graph by one for each node, after all other edges.

    As ``GATConv`` and ``GCNConv`` of torch_geometric with ``add_self_loops=True``, but the host does not wait for the
    device. Layers that are given the same tensor of edges share the result.

    Args:
        edge_index (Tensor): edges (source, target).
        edge_attr (Tensor or None): edge features; a new loop has the mean of those of the other edges into its node.
        num_nodes (int): N.

    Shapes: edge_index (2, E), edge_attr (E, C) -> (2, E' + N), (E' + N, C), E' edges that are no loops.
    """
    rows, looped = compute_once(edge_index, ("self loops", num_nodes), partial(_looped, edge_index, num_nodes))
    if edge_attr is None:
        return looped, None
    if rows is not None:
        edge_index, edge_attr = edge_index[:, rows], edge_attr[rows]
    return looped, add_self_loops(edge_index, edge_attr, fill_value="mean", num_nodes=num_nodes)[1]


def _looped(edge_index: Tensor, num_nodes: int) -> tuple[Tensor | None, Tensor]:
    """Return which edges are no loops, None where all are none, and these edges followed by the new loops."""
    source, target = host_copy(edge_index)
    size, rows = int((source != target).sum()), None
    if size < edge_index.size(1):
        rows = torch.nonzero_static(edge_index[0] != edge_index[1], size=size).squeeze(1)
        edge_index = edge_index[:, rows]
    return rows, add_self_loops(edge_index, num_nodes=num_nodes)[0]
