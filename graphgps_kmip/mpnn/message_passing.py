"""Parts of message passing layers: errors, bases, distance gate, self loops; torch_geometric's convolutions.

`SummedGCN` and others sum over neighbours without a tensor of edges: a node's sum is taken in one pass over the list of
its in-edges. Parameters and results are torch_geometric's. Each class names the `propagate` that torch_geometric
specialises: explanations do not see that of a base class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import dropout, leaky_relu, linear
from torch_geometric.nn import APPNP, GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, softmax

from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.host_copies import compute_once, host_copy
from graphgps_kmip.ops.propagation import WeightedEdges, adjacency, propagate, propagate_heads, unweighted


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


class Convolution(nn.Module):
    """Base of layers around one torch_geometric convolution, `conv`, that reads no encodings and leaves edges as given.

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
        return self.convolve(x, edge_index, edge_attr), edge_attr

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return new node features; here without edge features."""
        return self.conv(x, edge_index)


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


def compute_gate(layer: str, gate: DistanceGate | None, encoding: Tensor | None, edge_index: Tensor) -> Tensor | None:
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


# Edges times channels from which the lists pay for being sorted, and channels from which a pass over a list does.
MIN_NUMBERS, MIN_CHANNELS = 2**18, 16


def lists_pay(edge_index: Tensor, channels: int, passes: int = 1) -> bool:
    """Return whether sums over lists are the faster way for so many passes: on a CPU, from some size on."""
    if edge_index.device.type != "cpu" or is_compiling():
        return False
    return channels >= MIN_CHANNELS and edge_index.size(1) * channels * passes >= MIN_NUMBERS


def normalise_edges(edge_index: Tensor, x: Tensor) -> WeightedEdges:
    r"""Return edges with the weights :math:`1 / \sqrt{d_j d_i}`, sorted once for all layers that read this tensor."""

    def weigh() -> Tensor:
        return gcn_norm(edge_index, None, len(x), add_self_loops=False, dtype=x.dtype)[1]

    return WeightedEdges.of(edge_index, len(x), ("gcn", x.dtype), weigh)


class SummedGCN(GCNConv):
    """Graph convolution with symmetric normalisation: ``GCNConv``, without a tensor of the edges where that pays."""

    propagate = MessagePassing.propagate

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return new features: x (N, C), edge_index (2, E), edge_weight (E,) -> (N, C')."""
        changed = self.add_self_loops or edge_weight is not None
        if self.explain or changed or not lists_pay(edge_index, self.out_channels):
            return super().forward(x, edge_index, edge_weight)
        return propagate(self.lin(x), normalise_edges(edge_index, x)) + self.bias


class SummedAPPNP(APPNP):
    """Steps of personalised PageRank: ``APPNP``, without a tensor of the edges in each step where that pays.

    ``edge_dropout`` draws from all weights in each step. ``APPNP(dropout=...)`` draws from what the last step has left
    (torch_geometric 2.8.1), so that ten steps keep one weight in 1,024, 1,024 times as large.
    """

    propagate = MessagePassing.propagate

    def __init__(self, steps: int, alpha: float, edge_dropout: float = 0.0) -> None:
        super().__init__(steps, alpha, add_self_loops=False)
        self.edge_dropout = edge_dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return new features: x (N, C), edge_index (2, E) -> (N, C)."""
        if self.training and self.edge_dropout:
            weight = gcn_norm(edge_index, None, len(x), add_self_loops=False, dtype=x.dtype)[1]
            out = x
            for _ in range(self.K):
                dropped = dropout(weight, self.edge_dropout)
                out = (1 - self.alpha) * self.propagate(edge_index, x=out, edge_weight=dropped) + self.alpha * x
            return out
        if self.explain or not lists_pay(edge_index, x.size(-1), self.K):
            return super().forward(x, edge_index)
        edges, out = normalise_edges(edge_index, x), x
        for _ in range(self.K):
            out = (1 - self.alpha) * propagate(out, edges) + self.alpha * x
        return out


class SummedGAT(GATConv):
    """Attention over neighbours with additive scores: ``GATConv``, without a tensor of the edges where that pays.

    Heads are concatenated. The score of an edge's features is one product with the folded weights,
    :math:`(W_e^T w)^T e` for :math:`w^T (W_e e)`; that of a loop is the mean of the scores of the edges into its node.
    """

    propagate = MessagePassing.propagate

    def __init__(
        self,
        dim_in: int,
        dim_head: int,
        heads: int,
        *,
        edge_dim: int | None = None,
        dropout: float = 0.0,
        add_self_loops: bool = True,
    ) -> None:
        super().__init__(dim_in, dim_head, heads, edge_dim=edge_dim, dropout=dropout, add_self_loops=False)
        self.with_loops = add_self_loops

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """Return new features: x (N, C), edge_index (2, E), edge_attr (E, C_e) -> (N, H D)."""
        if self.explain or not lists_pay(edge_index, self.heads * self.out_channels):
            return super().forward(x, *self._add_loops(edge_index, edge_attr, len(x)))
        edge_index, edge_score = self._add_loops(edge_index, self._edge_scores(edge_attr), len(x))
        x = self.lin(x).unflatten(1, (self.heads, -1))
        source_score, target_score = ((x * weight).sum(2) for weight in (self.att_src, self.att_dst))
        source, target = edge_index
        score = source_score.index_select(0, source) + target_score.index_select(0, target)
        if edge_score is not None:
            score = score + edge_score
        weight = softmax(leaky_relu(score, self.negative_slope), target, num_nodes=len(x))
        weight = dropout(weight, self.dropout, self.training)
        return propagate_heads(x, weight, unweighted(edge_index, len(x))).flatten(1) + self.bias

    def _add_loops(self, edge_index: Tensor, edge_score: Tensor | None, loops: int) -> tuple[Tensor, Tensor | None]:
        return replace_self_loops(edge_index, edge_score, loops) if self.with_loops else (edge_index, edge_score)

    def _edge_scores(self, edge_attr: Tensor | None) -> Tensor | None:
        if edge_attr is None or self.lin_edge is None:
            return None
        folded = (self.lin_edge.weight.unflatten(0, (self.heads, -1)) * self.att_edge[0, ..., None]).sum(1)
        return linear(edge_attr, folded)


class SummedGIN(GINConv):
    """Graph isomorphism convolution: ``GINConv``, without a tensor of the edges where that pays."""

    propagate = MessagePassing.propagate

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return new features: x (N, C), edge_index (2, E) -> (N, C')."""
        if self.explain or not lists_pay(edge_index, x.size(-1)):
            return super().forward(x, edge_index)
        return self.nn(propagate(x, unweighted(edge_index, len(x))) + (1 + self.eps) * x)


class SummedSAGE(SAGEConv):
    """Mean of the neighbours beside the node itself: ``SAGEConv``, without a tensor of the edges where that pays."""

    propagate = MessagePassing.propagate

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return new features: x (N, C), edge_index (2, E) -> (N, C')."""
        if self.explain or not lists_pay(edge_index, x.size(-1)):
            return super().forward(x, edge_index)
        return self.lin_l(propagate(x, adjacency(edge_index, len(x), "mean", x.dtype))) + self.lin_r(x)
