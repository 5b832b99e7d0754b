"""k-MIP attention (thesis and paper): each node attends to its k keys of largest inner product."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.gather import softmax_weight, sparse_attention
from graphgps_kmip.attention.graph import AttentionGraph
from graphgps_kmip.attention.heads import check_dropout, dim_per_head
from graphgps_kmip.attention.sharded import sharded_kmip_attention
from graphgps_kmip.search import check_backend_name, topk_inner_product

HEAD_AGGREGATIONS = ("none", "Linear")


class KMIPAttention(nn.Module):
    """Multi-head attention where every node attends to the k nodes of its graph with the largest inner product.

    ``concat_h softmax(T_k(Q_h K_h^T) / sqrt(dim_kq)) V_h``, where T_k keeps the k largest entries of a row (all of them
    in a graph with fewer nodes) and sets the others to -inf. The search is exact and carries no gradient; the backward
    keeps N * k indices and weights for each head.

    Args:
        dim: channels in and out.
        num_heads: heads.
        dropout: probability to drop a selected weight, in training only.
        k: keys for each node and head.
        dim_kq: channels of queries and keys of a head; None: dim / num_heads.
        dim_val: channels of values of a head; None: dim / num_heads.
        head_agg: "none" concatenates the heads (num_heads * dim_val must be dim), "Linear" adds a linear layer to dim.
        search: backend of the search, "auto" picks one.
        shard: where a graph's nodes are divided over processes, attend to the nodes of all of them.

    Shapes:
        x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

    Raises:
        ValueError: one of the arguments is out of its range, or they do not fit together.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        *,
        k: int = 10,
        dim_kq: int | None = None,
        dim_val: int | None = None,
        head_agg: str = "none",
        search: str = "auto",
        shard: bool = False,
    ) -> None:
        super().__init__()
        dim_kq = dim_per_head(dim, num_heads) if dim_kq is None else dim_kq
        dim_val = dim_per_head(dim, num_heads) if dim_val is None else dim_val
        _check_options(k, dim, num_heads, dim_kq, dim_val, head_agg)
        check_backend_name(search)
        self.num_heads = num_heads
        self.dropout = check_dropout(dropout)
        self.k = k
        self.search = search
        self.shard = shard
        self.query = nn.Linear(dim, num_heads * dim_kq)
        self.key = nn.Linear(dim, num_heads * dim_kq)
        self.value = nn.Linear(dim, num_heads * dim_val)
        self.out = nn.Linear(num_heads * dim_val, dim) if head_agg == "Linear" else nn.Identity()

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (self._heads(linear, x) for linear in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        if context.halo is not None:
            if not self.shard:
                raise ValueError("the nodes of this graph are divided over processes: set gt.kmip.shard True")
            return self.out(sharded_kmip_attention(q, k, v, self.k, backend=self.search, dropout=dropout).flatten(1))
        index, score = self._select(q, k, context)
        return self.out(sparse_attention(q, k, v, index, score, dropout).flatten(1))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights, without dropout."""
        context = GraphContext.of(context, x)
        q, k = self._heads(self.query, x), self._heads(self.key, x)
        index, score = self._select(q, k, context)
        return AttentionGraph(index, softmax_weight(score, q.size(-1)))

    def _heads(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return linear(x).unflatten(1, (self.num_heads, -1))  # (N, H, D)

    def _select(self, q: Tensor, k: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
        """Index and score (H, N, K) with K = min(k, largest graph); scores of halves in float32."""
        num_keys = max(1, min(self.k, context.max_nodes))
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = (heads.transpose(0, 1).to(wide) for heads in (q, k))  # (H, N, D)
        return topk_inner_product(q, k, context.ptr, context.ptr, num_keys, self.search)


def _check_options(k: int, dim: int, num_heads: int, dim_kq: int, dim_val: int, head_agg: str) -> None:
    for name, value in (("k", k), ("num_heads", num_heads), ("dim_kq", dim_kq), ("dim_val", dim_val)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    if head_agg not in HEAD_AGGREGATIONS:
        raise ValueError(f"head_agg must be one of {', '.join(HEAD_AGGREGATIONS)}, got {head_agg!r}")
    if head_agg == "none" and num_heads * dim_val != dim:
        raise ValueError(
            f"head_agg 'none' concatenates the heads, so num_heads * dim_val must be dim, got {num_heads} * {dim_val} "
            f"and dim {dim}: set head_agg 'Linear', or leave dim_val at None (dim / num_heads)"
        )
