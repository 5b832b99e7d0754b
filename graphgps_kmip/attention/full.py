"""Full softmax attention among the nodes of each graph by torch's fused kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded, to_padded
from graphgps_kmip.attention.graph import AttentionGraph
from graphgps_kmip.attention.heads import check_dropout, dim_per_head


class FullAttention(nn.Module):
    """Multi-head attention where every node attends to all nodes of its graph.

    ``out(concat_h softmax(Q_h K_h^T / sqrt(D)) V_h)`` with D = dim / num_heads; costs sum_g N_g^2 * dim.
    Initialised as ``torch.nn.MultiheadAttention``.

    Args:
        dim: channels in and out.
        num_heads: heads; must divide dim.
        dropout: probability to drop an attention weight, in training only.

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: dim is not divisible by num_heads, or dropout is not in [0, 1).
    """

    def __init__(self, dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        dim_per_head(dim, num_heads)
        self.num_heads = num_heads
        self.dropout = check_dropout(dropout)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v, mask = self._project(x, context)
        dropout = self.dropout if self.training else 0.0
        out = scaled_dot_product_attention(q, k, v, _key_mask(mask, context), dropout)  # (B, H, Nmax, D)
        return self.out(from_padded(out.transpose(1, 2).flatten(2), context))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return all weights: K = Nmax slots a node, in the order of the nodes of its graph, without dropout."""
        context = GraphContext.of(context, x)
        q, k, _, mask = self._project(x, context)
        score = (q @ k.mT / math.sqrt(q.size(-1))).transpose(1, 2).flatten(2)  # (B, Nmax, H * Nmax)
        mask = mask[context.batch]  # (N, Nmax), the keys of each node
        score = from_padded(score, context).unflatten(1, (self.num_heads, -1)).transpose(0, 1)  # (H, N, Nmax)
        weight = score.masked_fill(~mask, -torch.inf).softmax(-1)
        index = context.ptr[context.batch, None] + torch.arange(context.max_nodes, device=x.device)
        return AttentionGraph(index.masked_fill(~mask, -1).expand_as(weight), weight)

    def _project(self, x: Tensor, context: GraphContext) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Padded q, k and v (B, H, Nmax, D) and the mask (B, Nmax) of real nodes."""
        padded, mask = to_padded(self.qkv(x), context)
        q, k, v = padded.unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, Nmax, 3, H, D)
        return q, k, v, mask


def _key_mask(mask: Tensor, context: GraphContext) -> Tensor | None:
    """Which keys a query may see, (B, 1, 1, Nmax); None (the fastest kernels) when nothing is padded."""
    if context.min_nodes == context.max_nodes:
        return None
    # a graph without nodes looks at its padding: a row without any key could turn into NaN
    return (mask | ~mask.any(1, keepdim=True))[:, None, None]
