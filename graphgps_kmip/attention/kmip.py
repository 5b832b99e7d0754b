"""k-MIP attention (k-MIP thesis, section 4.1; paper, section 3.1): attention to the k keys of largest inner product."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from graphgps_kmip.attention.context import AttentionGraph, GraphContext
from graphgps_kmip.attention.head_arguments import check_dropout, check_share, described, dim_per_head
from graphgps_kmip.attention.k_annealing import AnnealedKeys, check_start
from graphgps_kmip.attention.key_selection import BestKeys, DiverseKeys, KeySelection, RandomKeys
from graphgps_kmip.attention.sparse_attention import softmax_weight, sparse_attention
from graphgps_kmip.errors import InputError
from graphgps_kmip.ranges import COUNT, NATURAL, NOT_NEGATIVE, WIDTH, Choice, Range, Registered
from graphgps_kmip.registry import register
from graphgps_kmip.search import check_backend_name

HEAD_AGGREGATIONS = ("none", "Linear")


class KMIPAttention(nn.Module):
    """Multi-head attention where every node attends to the k nodes of its graph with the largest inner product.

    ``concat_h softmax(T_k(Q_h K_h^T) / sqrt(dim_kq)) V_h``, where T_k keeps the k largest entries of a row (all of them
    in a graph with fewer nodes) and sets the others to -inf. The search is exact and carries no gradient; N * k indices
    and weights per head are kept for the backward pass.

    Args:
        dim (int): channels in and out.
        num_heads (int): heads.
        dropout (float, optional): probability to drop a selected weight, in training only. (default: 0.0)
        k (int, optional): keys per node and head. (default: 10)
        dim_kq (int, optional): channels of queries and keys per head; None: dim / num_heads. (default: None)
        dim_val (int, optional): channels of values per head; None: dim / num_heads. (default: None)
        head_agg (str, optional): "none" concatenates the heads (num_heads * dim_val must be dim), "Linear" adds a
            linear layer to dim. (default: "none")
        search (str, optional): backend of the search, a registered search backend, or "auto".
            (default: "auto")
        selection (KeySelection, optional): another selection of keys than T_k: `AnnealedKeys`, `DiverseKeys` or
            `RandomKeys`; None: `BestKeys`. (default: None)

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
        selection: KeySelection | None = None,
    ) -> None:
        super().__init__()
        dim_kq = dim_per_head(dim, num_heads) if dim_kq is None else dim_kq
        dim_val = dim_per_head(dim, num_heads) if dim_val is None else dim_val
        _check_options(k, dim, num_heads, dim_kq, dim_val, head_agg)
        check_backend_name(search)
        self.num_heads, self.k = num_heads, k
        self.dropout = check_dropout(dropout)
        self.search = search
        self.query = nn.Linear(dim, num_heads * dim_kq)
        self.key = nn.Linear(dim, num_heads * dim_kq)
        self.value = nn.Linear(dim, num_heads * dim_val)
        self.selection = BestKeys() if selection is None else selection
        self.out = nn.Linear(num_heads * dim_val, dim) if head_agg == "Linear" else nn.Identity()

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (self._heads(linear, x) for linear in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        index, score = self._select(q, k, context)
        return self.out(sparse_attention(q, k, v, index, score, dropout).flatten(1))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights before dropout."""
        context = GraphContext.of(context, x)
        q, k = self._heads(self.query, x), self._heads(self.key, x)
        index, score = self._select(q, k, context)
        return AttentionGraph(index, softmax_weight(score, q.size(-1)))

    def extra_repr(self) -> str:
        """Say dim, heads, k, and other options that are not the default ones."""
        dim = self.query.in_features
        sizes = {
            "dim_kq": self.query.out_features // self.num_heads,
            "dim_val": self.value.out_features // self.num_heads,
        }
        sizes = {name: None if size == dim // self.num_heads else size for name, size in sizes.items()}
        head_agg = "none" if isinstance(self.out, nn.Identity) else "Linear"
        return described(self, dim, self.num_heads, always=("k",), **sizes, head_agg=head_agg)

    def _heads(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return linear(x).unflatten(1, (self.num_heads, -1))  # (N, H, D)

    def _select(self, q: Tensor, k: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
        """T_k: index and score (H, N, K) with K = min(k, largest graph); float32 at least."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = (heads.transpose(0, 1).to(wide) for heads in (q, k))  # (H, N, D)
        return self.selection(q, k, context, self.selection.num_keys(self.k, context), self.search)


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


@register("attention", "kMIP", aliases=("SparseAttention",), zero_grad=("key.bias",), dropout="sparse_attn_dropout")
def build_kmip(
    dim: int,
    num_heads: int,
    dropout: float = 0.0,
    *,
    k: Annotated[int, COUNT] = 10,
    dim_kq: Annotated[int | None, WIDTH] = None,
    dim_val: Annotated[int | None, WIDTH] = None,
    head_agg: Annotated[str, Choice(HEAD_AGGREGATIONS)] = "none",
    search: Annotated[str, Registered("a search backend, or auto")] = "auto",
    k_start: Annotated[int, NATURAL] = 0,
    anneal_until: Annotated[float, Range(0, 1, above=True)] = 0.5,
    diversity: Annotated[float, NOT_NEGATIVE] = 0.0,
    random_attention: bool = False,
    random_fraction: Annotated[float, Range(0, 1, above=True)] = 0.1,
) -> KMIPAttention:
    """Multi-head attention where every node attends to the k nodes of its graph with the largest inner product.

    Every keyword is a key of ``gt.kmip``, hence the many of them; what stands behind ``search`` is off by default.

    Args:
        dim: as all before ``k_start``, see `KMIPAttention`.
        num_heads: heads.
        dropout: of the weights.
        k: keys for each node and head.
        dim_kq: channels of queries and keys of a head.
        dim_val: channels of values of a head.
        head_agg: "none" or "Linear".
        search: backend of the search.
        k_start: k before training, 0: as k. See `AnnealedKeys`.
        anneal_until: share of the training in which k falls.
        diversity: what a copy of a key loses; 0 is k-MIP. See `DiverseKeys`.
        random_attention: attend to the best of some keys that are drawn at random. See `RandomKeys`.
        random_fraction: share of a graph's nodes that is drawn.

    Raises:
        ValueError: one of the arguments is out of its range, or they do not fit together.
    """
    check_share("anneal_until", anneal_until)  # when it is off, too, as the next one
    check_share("random_fraction", random_fraction)
    selection: KeySelection = RandomKeys(random_fraction) if random_attention else BestKeys()
    if diversity:
        selection = DiverseKeys(diversity, selection)
    if k_start:
        check_start(k_start, k)
        selection = AnnealedKeys(k_start, anneal_until, selection)
    return KMIPAttention(
        dim,
        num_heads,
        dropout,
        k=k,
        dim_kq=dim_kq,
        dim_val=dim_val,
        head_agg=head_agg,
        search=search,
        selection=selection,
    )
