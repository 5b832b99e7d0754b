"""k-MIP attention (k-MIP thesis, section 4.1; paper, section 3.1): attention to the k keys of largest inner product.

The keys are those of `BestKeys`, the papers' exact search, or of another ``selection``: `DiverseKeys`, `RandomKeys` (an
ablation of the thesis) or `AnnealedKeys`.
"""

from __future__ import annotations

import math
from functools import partialmethod
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.functional import normalize

from graphgps_kmip.attention.head_arguments import (
    check_dropout,
    check_least,
    describe,
    dim_per_head,
    split_heads,
)
from graphgps_kmip.errors import InputError
from graphgps_kmip.ops.context import AttentionGraph, GraphContext
from graphgps_kmip.ops.sparse_attention import softmax_weight, sparse_attention
from graphgps_kmip.ranges import COUNT, NATURAL, NOT_NEGATIVE, WIDTH, Choice, Range, Registered
from graphgps_kmip.registry import register
from graphgps_kmip.search import check_backend_name, topk_inner_product
from graphgps_kmip.signatures import check_arguments

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
        search (str, optional): a registered search backend, or "auto". (default: "auto")
        selection (KeySelection, optional): another selection than T_k; None: `BestKeys`. (default: None)

    Shapes: x (N, dim); context a GraphContext, a batch vector (N,) or None; returns (N, dim).

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
        selection: KeySelection | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.num_heads, self.dropout = dim, num_heads, check_dropout(dropout)
        self.k, self.dim_kq, self.dim_val, self.head_agg, self.search = k, dim_kq, dim_val, head_agg, search
        dim_kq = dim_per_head(dim, num_heads) if dim_kq is None else dim_kq
        dim_val = dim_per_head(dim, num_heads) if dim_val is None else dim_val
        check_least(1, num_heads=num_heads)
        check_arguments(build_kmip, {"k": k, "dim_kq": dim_kq, "dim_val": dim_val, "head_agg": head_agg})
        check_backend_name(search)
        if head_agg == "none" and num_heads * dim_val != dim:
            raise InputError(
                f"head_agg 'none' concatenates the heads, so num_heads * dim_val must be dim, got {num_heads} * "
                f"{dim_val} and dim {dim}: set head_agg 'Linear', or leave dim_val at None (dim / num_heads)"
            )
        if isinstance(selection, AnnealedKeys) and selection.k_start < k:
            raise InputError(f"k_start must be 0 (constant k) or at least k, got {selection.k_start} and k {k}")
        self.query = nn.Linear(dim, num_heads * dim_kq)
        self.key = nn.Linear(dim, num_heads * dim_kq)
        self.value = nn.Linear(dim, num_heads * dim_val)
        self.selection = BestKeys() if selection is None else selection
        self.out = nn.Linear(num_heads * dim_val, dim) if head_agg == "Linear" else nn.Identity()

    def forward(self, x: Tensor, context: GraphContext | Tensor | None = None) -> Tensor:
        """Attend inside each graph: x (N, dim) -> (N, dim)."""
        context = GraphContext.of(context, x)
        q, k, v = (split_heads(linear(x), self.num_heads) for linear in (self.query, self.key, self.value))
        index, score = self._select(q, k, context)
        dropout = self.dropout if self.training else 0.0
        return self.out(sparse_attention(q, k, v, index, score, dropout).flatten(1))

    @torch.no_grad()
    def attention_graph(self, x: Tensor, context: GraphContext | Tensor | None = None) -> AttentionGraph:
        """Return the selected keys and their weights before dropout."""
        q, k = (split_heads(linear(x), self.num_heads) for linear in (self.query, self.key))
        index, score = self._select(q, k, GraphContext.of(context, x))
        return AttentionGraph(index, softmax_weight(score, q.size(-1)))

    extra_repr = partialmethod(describe, "k")

    def _select(self, q: Tensor, k: Tensor, context: GraphContext) -> tuple[Tensor, Tensor]:
        """T_k: index and score (H, N, K) with K = min(k, largest graph); float32 at least."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = (heads.transpose(0, 1).to(wide) for heads in (q, k))  # (H, N, D)
        return self.selection(q, k, context, self.selection.num_keys(self.k, context), self.search)


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

    Each keyword is a key of ``gt.kmip``; those before ``k_start`` are arguments of `KMIPAttention`.

    Args:
        dim: channels in and out.
        num_heads: heads.
        dropout: of the weights.
        k: keys for each node and head.
        dim_kq: channels of queries and keys of a head.
        dim_val: channels of values of a head.
        head_agg: "none" or "Linear".
        search: backend of the search.
        k_start: k before training, 0: constant k. See `AnnealedKeys`.
        anneal_until: share of the training in which k decreases.
        diversity: penalty of a copy of a key; 0 is k-MIP. See `DiverseKeys`.
        random_attention: attend to the best of some keys that are drawn at random. See `RandomKeys`.
        random_fraction: share of a graph's nodes that is drawn.
    """
    selection: KeySelection = RandomKeys(random_fraction) if random_attention else BestKeys()
    if diversity:
        selection = DiverseKeys(diversity, selection)
    if k_start:
        selection = AnnealedKeys(k_start, anneal_until, selection)
    widths = {"dim_kq": dim_kq, "dim_val": dim_val, "head_agg": head_agg}
    return KMIPAttention(dim, num_heads, dropout, k=k, search=search, selection=selection, **widths)


class KeySelection(nn.Module):
    """Base class: ``selection(q, k, context, num_keys, backend) -> (index, score)``, which a subclass defines.

    Args:
        among (KeySelection, optional): selection of the candidates; None: all keys of the graph. (default: None)

    Shapes: q and k (H, N, D); index (nodes, -1: missing) and score (-inf: missing) (H, N, K), K <= num_keys.
    """

    def __init__(self, among: KeySelection | None = None) -> None:
        super().__init__()
        self.among = among

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return the current number of keys per query of an attention with k keys."""
        return k if self.among is None else self.among.num_keys(k, context)

    def extra_repr(self) -> str:
        """Return the arguments that are numbers."""
        return ", ".join(f"{name}={value}" for name, value in vars(self).items() if type(value) in (int, float))


class BestKeys(KeySelection):
    """The k keys of largest inner product, as in the papers; all keys of a graph with fewer than k nodes.

    Queries or keys that are not finite raise `NotFinite` on a CPU; elsewhere all scores are NaN then, and so the loss.
    """

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Search exactly; see `KeySelection`."""
        if not is_compiling():  # a traced program is for graphs of any size: it keeps empty slots
            num_keys = min(num_keys, max(1, context.max_nodes))
        return topk_inner_product(q, k, context.ptr, context.ptr, num_keys, backend, read_values=q.device.type == "cpu")


POOL = 2  # candidates per selected key
CHUNK_ENTRIES = 2**22  # of gathered candidates and their cosines, 16 MB of float32 each


class DiverseKeys(KeySelection):
    """k of the best 2k keys, less similar to each other than the best k (from neither paper; thesis, section 7.2).

    Args:
        diversity (float): penalty of a copy of a selected key, in units of the logit; 0 is k-MIP.
        among (KeySelection, optional): selection of the candidates; None: `BestKeys`. (default: None)
    """

    def __init__(self, diversity: float, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)
        if not 0.0 <= diversity < math.inf:
            raise InputError(f"diversity must be 0 or more, and finite, got {diversity}")
        self.diversity = diversity

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select among twice as many; see `KeySelection`."""
        index, score = self.among(q, k, context, POOL * num_keys, backend)
        return diverse_keys(index, score, k, num_keys, self.diversity)


@torch.no_grad()
def diverse_keys(index: Tensor, score: Tensor, k: Tensor, num_keys: int, weight: float) -> tuple[Tensor, Tensor]:
    r"""Select candidates of each query greedily, by maximal marginal relevance (Carbonell and Goldstein 1998).

    .. math:: s_j / \sqrt{D} - weight \cdot \max(0, \max_{i \text{ selected}} \cos(k_i, k_j))

    At each step the key j with the largest value; the first is always that of largest inner product. A copy of a key is
    selected only if its attention weight would be e^weight times that of a key orthogonal to the selected ones. Costs
    N * C^2 * D; no gradient. Candidates and scores are in descending order.

    Shapes: index (-1: missing) and score (-inf: missing) (H, N, C), k (H, M, D); returns both (H, N, min(K, C)).
    """
    direction = normalize(k, dim=-1)
    num_heads, _, candidates = index.shape
    size = max(1, CHUNK_ENTRIES // max(1, num_heads * candidates * max(candidates, k.size(-1))))
    pairs = zip(index.split(size, dim=1), score.split(size, dim=1), strict=True)
    with torch.autocast(k.device.type, enabled=False):  # it would round the cosines
        slots = [_choose(part, scores / math.sqrt(k.size(-1)), direction, num_keys, weight) for part, scores in pairs]
    slot = torch.cat(slots, dim=1)
    place = slot.clamp(min=0)
    return (index.gather(2, place).masked_fill(slot < 0, -1), score.gather(2, place).masked_fill(slot < 0, -torch.inf))


def _choose(index: Tensor, logit: Tensor, direction: Tensor, num_keys: int, weight: float) -> Tensor:
    """Return the slots of the selected keys, -1: none; index and logit (H, n, C), direction (H, M, D) -> (H, n, K)."""
    rows = index.clamp(min=0).flatten(1)[..., None].expand(-1, -1, direction.size(-1))
    candidate = direction.gather(1, rows).unflatten(1, index.shape[1:])  # (H, n, C, D)
    cosine = candidate @ candidate.mT  # (H, n, C, C)
    nearest, slots = torch.zeros_like(logit), []
    for _ in range(min(num_keys, index.size(2))):
        value, slot = (logit - weight * nearest).max(-1, keepdim=True)  # (H, n, 1)
        slots.append(slot.masked_fill(value == -torch.inf, -1))
        nearest = torch.maximum(nearest, cosine.gather(2, slot[..., None].expand_as(cosine[:, :, :1])).squeeze(2))
        logit = logit.scatter(-1, slot, -torch.inf)
    return torch.cat(slots, dim=-1)


def check_fraction(name: str, fraction: float) -> float:
    """Return a number in (0, 1] as it is; else raise ValueError."""
    if not 0.0 < fraction <= 1.0:
        raise InputError(f"{name} must be in (0, 1], got {fraction}")
    return fraction


class RandomKeys(KeySelection):
    """The k best of a random subset of each graph's keys (`draw_keys`): the thesis's ablation ``random_attention``.

    All queries of a graph and head share the subset, drawn anew in each call, in eval mode too. Differs from the public
    code in that a graph keeps at least one key.

    Args:
        random_fraction (float, optional): fraction of a graph's nodes in the subset, in (0, 1]. (default: 0.1)
    """

    def __init__(self, random_fraction: float = 0.1) -> None:
        super().__init__()
        self.random_fraction = check_fraction("random_fraction", random_fraction)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Draw a subset and search it; see `KeySelection`."""
        keys, ptr = draw_keys(context, k.size(0), self.random_fraction)
        drawn = k.gather(1, keys[..., None].expand(-1, -1, k.size(-1)))  # (H, M, D)
        num_keys = min(num_keys, max(1, int(context.max_nodes * self.random_fraction)))
        reads = q.device.type == "cpu"
        index, score = topk_inner_product(q, drawn, context.ptr, ptr, num_keys, backend, read_values=reads)
        nodes = keys.gather(1, index.clamp(min=0).flatten(1)).view_as(index)
        return nodes.masked_fill(index < 0, -1), score


def draw_keys(context: GraphContext, num_heads: int, fraction: float) -> tuple[Tensor, Tensor]:
    """Draw ``floor(n * fraction)`` of the n nodes of each graph, at least one, for each head, uniformly.

    Shapes: returns nodes (H, M), sorted by graph, and the boundaries of the graphs among them, (B+1,).
    """
    order = torch.rand(num_heads, len(context.batch), device=context.batch.device).argsort(dim=1)
    order = order.gather(1, context.batch[order].argsort(dim=1, stable=True))  # by graph, in random order within one
    count = torch.minimum((context.sizes.double() * fraction).long().clamp(min=1), context.sizes)
    place = torch.arange(len(context.batch), device=order.device) - context.ptr[context.batch]
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return order[:, place < count[context.batch]], ptr


class AnnealedKeys(KeySelection):
    """Key selection whose k decreases from k_start to the attention's k with ``context.progress``: see `annealed`.

    Against the papers' "supervision starvation". Eval mode uses the final k throughout, so that the best epoch is that
    of the model with k keys, not of an earlier one with more. Where the progress is not set, training uses k_start.

    Args:
        k_start (int): k before training, at least that of the attention.
        anneal_until (float, optional): share of the training in which k decreases, in (0, 1]. (default: 0.5)
        among (KeySelection, optional): selection of the keys; None: `BestKeys`. (default: None)
    """

    def __init__(self, k_start: int, anneal_until: float = 0.5, among: KeySelection | None = None) -> None:
        super().__init__(BestKeys() if among is None else among)
        self.k_start, self.anneal_until = k_start, check_fraction("anneal_until", anneal_until)

    def num_keys(self, k: int, context: GraphContext) -> int:
        """Return the current number of keys per query."""
        start, end = (self.among.num_keys(number, context) for number in (self.k_start, k))
        return annealed(start, end, context.progress_in(True) if self.training else 1.0, self.anneal_until)

    def forward(
        self, q: Tensor, k: Tensor, context: GraphContext, num_keys: int, backend: str = "auto"
    ) -> tuple[Tensor, Tensor]:
        """Select that many keys; see `KeySelection`."""
        return self.among(q, k, context, num_keys, backend)


def annealed(start: int, end: int, progress: float, until: float) -> int:
    r"""Return a number that decreases from start to end, linearly in its logarithm, up to a progress in (0, 1].

    .. math:: \mathrm{round}(start^{1 - s} \, end^s), \qquad s = \min(1, progress / until)
    """
    share = min(1.0, progress / until)
    return round(start ** (1.0 - share) * end**share)
