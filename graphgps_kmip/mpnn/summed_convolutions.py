"""Convolutions of torch_geometric (GCN, APPNP, GAT, GraphSAGE, GIN) that sum over neighbours without a tensor of edges.

A node's sum is taken in one pass over the list of its in-edges. Parameters and results are torch_geometric's. Each
class names the `propagate` that torch_geometric specialises: explanations do not see that of a base class.
"""

from __future__ import annotations

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import dropout, leaky_relu, linear
from torch_geometric.nn import APPNP, GATConv, GCNConv, GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import softmax

from graphgps_kmip.mpnn.message_passing import replace_self_loops
from graphgps_kmip.ops.propagation import WeightedEdges, adjacency, propagate, propagate_heads, unweighted

# Edges times channels from which the lists pay for being sorted, and channels from which a pass over a list does.
MIN_NUMBERS, MIN_CHANNELS = 2**20, 16


def lists_pay(edge_index: Tensor, channels: int, passes: int = 1) -> bool:
    """Return whether sums over lists are the faster way for so many passes: on a CPU, from some size on."""
    if edge_index.device.type != "cpu" or is_compiling():
        return False
    return channels >= MIN_CHANNELS and edge_index.size(1) * channels * passes >= MIN_NUMBERS


def normalised(edge_index: Tensor, x: Tensor) -> WeightedEdges:
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
        return propagate(self.lin(x), normalised(edge_index, x)) + self.bias


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
        edges, out = normalised(edge_index, x), x
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
