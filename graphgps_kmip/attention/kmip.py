"""k-MIP attention (thesis and paper): each node attends to its k keys of largest inner product."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import GraphContext
from graphgps_kmip.attention.dense import from_padded
from graphgps_kmip.attention.diversity import POOL, diverse_keys
from graphgps_kmip.attention.faults import repeat_first_key, with_padding, without_padding
from graphgps_kmip.attention.gather import softmax_weight, sparse_attention
from graphgps_kmip.attention.graph import AttentionGraph
from graphgps_kmip.attention.heads import check_dropout, described, dim_per_head
from graphgps_kmip.attention.random_keys import topk_of_random_keys
from graphgps_kmip.attention.schedule import annealed
from graphgps_kmip.attention.sharded import sharded_kmip_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import COUNT, NATURAL, NOT_NEGATIVE, WIDTH, Choice, Range, Registered
from graphgps_kmip.search import check_backend_name, topk_inner_product

HEAD_AGGREGATIONS = ("none", "Linear")


class KMIPAttention(nn.Module):
    """Multi-head attention where every node attends to the k nodes of its graph with the largest inner product.

    ``concat_h softmax(T_k(Q_h K_h^T) / sqrt(dim_kq)) V_h``, where T_k keeps the k largest entries of a row (all of them
    in a graph with fewer nodes) and sets the others to -inf. The search is exact and carries no gradient; the backward
    keeps N * k indices and weights for each head. Every option is a config key, hence the many arguments; what stands
    behind ``shard`` is off by default.

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
        k_start: k before training, 0: as k. Ours, for what the papers call supervision starvation: k falls to its final
            value while ``context.progress`` grows (see `annealed`), in eval mode too. Progress is 0 where nobody sets
            it: set ``batch.progress = 1`` to use a trained model by hand.
        anneal_until: share of the training in which k falls.
        diversity: what a copy of a key that is attended to loses against other keys, in units of the logit; 0 is k-MIP.
            Ours, see `diverse_keys`.
        random_attention: an ablation of the thesis: the k keys are the best of some that are drawn at random, again in
            each call, in eval mode too, by torch's generator (see `draw_keys`).
        random_fraction: share of a graph's nodes that is drawn.
        pad_keys: a fault of the public code, for runs that must repeat it: each graph is padded with nodes of zeros to
            the largest one of the batch, and these can be selected, so that a graph's output depends on the others.
        repeat_first_key: another one: a query with fewer than k keys counts the first node of its graph again in each
            missing slot, so that the output depends on the order of the nodes.

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
        k: Annotated[int, COUNT] = 10,
        dim_kq: Annotated[int | None, WIDTH] = None,
        dim_val: Annotated[int | None, WIDTH] = None,
        head_agg: Annotated[str, Choice(HEAD_AGGREGATIONS)] = "none",
        search: Annotated[str, Registered("a search backend, or auto")] = "auto",
        shard: bool = False,
        k_start: Annotated[int, NATURAL] = 0,
        anneal_until: Annotated[float, Range(0, 1, above=True)] = 0.5,
        diversity: Annotated[float, NOT_NEGATIVE] = 0.0,
        random_attention: bool = False,
        random_fraction: Annotated[float, Range(0, 1, above=True)] = 0.1,
        pad_keys: bool = False,
        repeat_first_key: bool = False,
    ) -> None:
        super().__init__()
        dim_kq = dim_per_head(dim, num_heads) if dim_kq is None else dim_kq
        dim_val = dim_per_head(dim, num_heads) if dim_val is None else dim_val
        _check_options(k, dim, num_heads, dim_kq, dim_val, head_agg)
        _check_selection(k, k_start, anneal_until, diversity, random_fraction)
        check_backend_name(search)
        if shard and (diversity or random_attention or pad_keys or repeat_first_key):
            raise InputError("shard has no diversity, random_attention, pad_keys or repeat_first_key: switch these off")
        if random_attention and repeat_first_key:
            raise InputError("random_attention may leave out the key of repeat_first_key: switch one of them off")
        self.num_heads = num_heads
        self.dropout = check_dropout(dropout)
        self.k, self.k_start, self.anneal_until = k, k_start or k, anneal_until
        self.search = search
        self.shard = shard
        self.diversity = diversity
        self.random_fraction = random_fraction if random_attention else None
        self.pad_keys, self.repeat_first_key = pad_keys, repeat_first_key
        self.query = nn.Linear(dim, num_heads * dim_kq)
        self.key = nn.Linear(dim, num_heads * dim_kq)
        self.value = nn.Linear(dim, num_heads * dim_val)
        self.out = nn.Linear(num_heads * dim_val, dim) if head_agg == "Linear" else nn.Identity()

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        if context.halo is not None and not self.shard:
            raise InputError("the nodes of this graph are divided over processes: set gt.kmip.shard True")
        if not self.pad_keys:
            return self._attend(x, context)
        out = self._attend(*with_padding(x, context))
        return from_padded(out.view(context.num_graphs, context.max_nodes, x.size(1)), context)

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights, without dropout; with ``pad_keys`` without those of padding."""
        context = given = GraphContext.of(context, x)
        if self.pad_keys:
            x, context = with_padding(x, given)
        q, k = self._heads(self.query, x), self._heads(self.key, x)
        index, score = self._select(q, k, context)
        graph = AttentionGraph(index, softmax_weight(score, q.size(-1)))
        return without_padding(graph, given) if self.pad_keys else graph

    def extra_repr(self) -> str:
        """Say dim, heads, k, and other options that are not the default ones."""
        dim = self.query.in_features
        dim_kq, dim_val = (linear.out_features // self.num_heads for linear in (self.query, self.value))
        as_dim = dim // self.num_heads
        return described(
            self,
            dim,
            self.num_heads,
            always=("k",),
            k=self.k,
            dropout=self.dropout,
            dim_kq=None if dim_kq == as_dim else dim_kq,
            dim_val=None if dim_val == as_dim else dim_val,
            head_agg="none" if isinstance(self.out, nn.Identity) else "Linear",
            search=self.search,
            shard=self.shard,
            k_start=0 if self.k_start == self.k else self.k_start,
            anneal_until=self.anneal_until,
            diversity=self.diversity,
            random_fraction=0.1 if self.random_fraction is None else self.random_fraction,
            random_attention=self.random_fraction is not None,
            pad_keys=self.pad_keys,
            repeat_first_key=self.repeat_first_key,
        )

    def _attend(self, x: Tensor, context: GraphContext) -> Tensor:
        q, k, v = (self._heads(linear, x) for linear in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        if context.halo is not None:
            num_keys = self._num_keys(context)
            return self.out(sharded_kmip_attention(q, k, v, num_keys, backend=self.search, dropout=dropout).flatten(1))
        index, score = self._select(q, k, context)
        return self.out(sparse_attention(q, k, v, index, score, dropout).flatten(1))

    def _heads(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return linear(x).unflatten(1, (self.num_heads, -1))  # (N, H, D)

    def _num_keys(self, context: GraphContext) -> int:
        return annealed(self.k_start, self.k, context.progress, self.anneal_until)

    def _select(self, q: Tensor, k: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
        """Index and score (H, N, K) with K = min(k, largest graph); scores of halves in float32."""
        num_keys, most = self._num_keys(context), max(1, context.max_nodes)
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = (heads.transpose(0, 1).to(wide) for heads in (q, k))  # (H, N, D)
        wanted = POOL * num_keys if self.diversity else num_keys
        wanted = wanted if self.repeat_first_key else min(wanted, most)
        if self.random_fraction is None:
            index, score = topk_inner_product(q, k, context.ptr, context.ptr, wanted, self.search)
        else:
            index, score = topk_of_random_keys(q, k, context, wanted, self.random_fraction, self.search)
        if self.diversity:
            index, score = diverse_keys(index, score, k, num_keys, self.diversity)
        if self.repeat_first_key:
            index, score = repeat_first_key(q, k, index, score, context)
        return index, score


def _check_options(k: int, dim: int, num_heads: int, dim_kq: int, dim_val: int, head_agg: str) -> None:
    for name, value in (("k", k), ("num_heads", num_heads), ("dim_kq", dim_kq), ("dim_val", dim_val)):
        if value < 1:
            raise InputError(f"{name} must be >= 1, got {value}")
    if head_agg not in HEAD_AGGREGATIONS:
        raise InputError(f"head_agg must be one of {', '.join(HEAD_AGGREGATIONS)}, got {head_agg!r}")
    if head_agg == "none" and num_heads * dim_val != dim:
        raise InputError(
            f"head_agg 'none' concatenates the heads, so num_heads * dim_val must be dim, got {num_heads} * {dim_val} "
            f"and dim {dim}: set head_agg 'Linear', or leave dim_val at None (dim / num_heads)"
        )


def _check_selection(k: int, k_start: int, anneal_until: float, diversity: float, random_fraction: float) -> None:
    if k_start and k_start < k:
        raise InputError(f"k_start must be 0 (k stays as it is) or at least k, got {k_start} and k {k}")
    for name, value in (("anneal_until", anneal_until), ("random_fraction", random_fraction)):
        if not 0.0 < value <= 1.0:
            raise InputError(f"{name} must be in (0, 1], got {value}")
    if not 0.0 <= diversity < torch.inf:
        raise InputError(f"diversity must be 0 or more, and finite, got {diversity}")
